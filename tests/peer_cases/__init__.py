"""Behaviour of vLLM 0.33 and SGLang 0.5.23, replayed on this cache case by case.

Ids: V pool, hashing and decode cases of vLLM; H hybrid cases of vLLM; S radix cases of SGLang. A
test carries its id in its name. Page numbers are one lower than in vLLM, whose page 0 is a null
page. Cases without a test are listed with the reason in ``NOT_APPLICABLE``.
"""

CASES = (
    *(f"v{n}" for n in (1, 2, 3, 4, 7, 8, 11, 12, 14, 15, 17, 18, 20, 21, 22, 23)),
    *(f"v{n}" for n in (25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 41, 43, 44)),
    *(f"h{n}" for n in (1, 2, 4, 5, 8, 9, 14, 15, 16, 17, 19, 20, 21, 23)),
    *(f"s{n}" for n in (2, 3, 4, 6, 7, 8, 9, 12, 13, 16, 17, 19, 20, 21, 22)),
)

NOT_APPLICABLE = {
    "v18": "a null page: this pool has none, skipped positions need no padding because a request "
    "names its pages by position",
}
