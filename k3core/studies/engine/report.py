"""The engine study as plain text, for the command line."""

from __future__ import annotations

from k3core.i18n import DEFAULT_LANGUAGE, t
from k3core.studies.engine.run import EngineStudy
from k3core.units import count_text, error_text


def render_text(study: EngineStudy, lang: str = DEFAULT_LANGUAGE) -> list[str]:
    """The second request without and with the prefix as a table, then what was compared."""

    def word(key: str, **values: object) -> str:
        return t(f"engine.{key}", lang, **values)

    def number(value: float) -> str:
        return count_text(value) if float(value).is_integer() else f"{value:,.2f}"

    reused = study.tables["flags"].set_index("lane")["reused"]
    lanes = ("without_prefix", "with_prefix")
    rows = [
        ("", *(word(f"label.{lane}") for lane in lanes), ""),
        (word("cli.reused_tokens"), *(count_text(reused[lane]) for lane in lanes), ""),
    ]
    for row in study.tables["compare"].to_dict("records"):
        without, with_prefix = number(row["without_prefix"]), number(row["with_prefix"])
        rows.append((word(f"cli.{row['metric']}"), without, with_prefix, f"× {row['share']:.2f}"))
    cpu = f"{study.cpu_ms_without:.0f}", f"{study.cpu_ms_with:.0f}"
    rows.append((word("cli.cpu_ms"), *cpu, ""))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [word("cli.title", prompt=count_text(study.prompt_len)), ""]
    for name, *cells in rows:
        shown = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *shown]).rstrip())
    lines += [
        "",
        word(
            "cli.decoding",
            per_step=f"{study.tokens_per_step:.2f}",
            kept=study.num_kept_drafts,
            drafts=study.num_drafts,
        ),
    ]
    for row in study.tables["exact"].to_dict("records"):
        lines.append(
            word(
                "cli.compared",
                check=word(f"label.{row['check']}"),
                different=count_text(row["different"]),
                logits=count_text(row["logits"]),
                largest=error_text(row["largest_difference"]),
                verdict=word(f"label.{row['verdict']}"),
            )
        )
    return lines
