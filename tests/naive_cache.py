"""The rules of ``HybridCacheManager`` told with plain lists and dicts: slow, and easy to read.

A prefix is named by ``(salt, token, token, ...)`` itself, no hash. Pages are numbers on a list.
"""

from k3core.prefix_cache import Retention


class Unit:
    """One visible or announced block; ``page`` is None unless it lies in a published page."""

    def __init__(self):
        self.page = None


class NaiveCache:
    def __init__(self, num_pages, block, units_per_page, groups, retention: Retention, cascade):
        self.block, self.step, self.groups = block, units_per_page, groups
        self.page_tokens = block * units_per_page
        self.retention, self.cascade = retention, cascade
        self.order = list(range(num_pages))  # free and cached pages, next to be taken first
        self.references = {}
        self.published = set()
        self.blocks = {}  # prefix -> Unit, visible
        self.states = {}  # prefix -> list of pages, one per group
        self.requests = {}
        self.num_skipped = 0

    # pool

    def alloc(self, count):
        pages, self.order = self.order[:count], self.order[count:]
        evicted = [page for page in pages if page in self.published]
        self.published -= set(evicted)
        for page in pages:
            self.references[page] = 1
        for page in evicted:
            units = [one for one, unit in self.blocks.items() if unit.page == page]
            for one in units:
                self.blocks[one].page = None
            for one in units:
                self.drop_block(one)
            for one in [one for one, state in self.states.items() if page in state]:
                self.drop_states([one])
        return pages

    def retain(self, pages):
        for page in pages:
            if page in self.order:
                self.order.remove(page)
            self.references[page] = self.references.get(page, 0) + 1

    def free(self, pages):
        front = []
        for page in pages:
            self.references[page] -= 1
            if not self.references[page]:
                del self.references[page]
                if page in self.published:
                    self.order.append(page)
                else:
                    front.append(page)
        self.order[:0] = front

    def withdraw(self, pages):
        front = []
        for page in sorted(set(pages)):
            if page in self.published:
                self.published.discard(page)
                if page in self.order:
                    self.order.remove(page)
                    front.append(page)
        self.order[:0] = front

    # entries

    def path(self, tokens, end=None):
        end = len(tokens) - 1 if end is None else end
        return [tokens[: 1 + at] for at in range(self.block, end + 1, self.block)]

    def drop_block(self, prefix):
        if prefix not in self.blocks:
            return
        gone = [prefix]
        if self.cascade:
            gone = [one for one in self.blocks if one[: len(prefix)] == prefix]
        units = [self.blocks.pop(one) for one in gone]
        pages = [unit.page for unit in units if unit.page is not None]
        for unit in units:
            unit.page = None
        if self.cascade:
            for one in [one for one in self.states if one[: len(prefix)] == prefix]:
                pages += self.states.pop(one)
        self.withdraw([page for page in pages if not self.units_on(page)])

    def drop_states(self, prefixes):
        for one in prefixes:
            if one in self.states:
                self.withdraw(self.states.pop(one))

    def units_on(self, page):
        return [unit for unit in self.blocks.values() if unit.page == page]

    def keep_unit(self, unit, page):
        old, unit.page = unit.page, page
        self.published.add(page)
        if old is not None and old != page and not self.units_on(old):
            self.withdraw([old])

    def known(self, prefix):
        return prefix in self.blocks or any(prefix in r["pending"] for r in self.requests.values())

    def lookup(self, tokens):
        """Usable boundary, deepest match, deepest registered block."""
        path = self.path(tokens)
        matched = 0
        while matched < len(path) and path[matched] in self.blocks:
            matched += 1
        known = matched
        while known < len(path) and self.known(path[known]):
            known += 1
        usable = min(matched, max(len(tokens) - 2, 0) // self.block)
        junction = usable
        while usable and self.groups and path[usable - 1] not in self.states:
            usable -= 1
        return usable, matched, known, junction

    def announce(self, request):
        path = self.path(request["tokens"])
        request["pending"] = {one for one in path if one not in self.blocks}

    # requests

    def admit(self, name, tokens):
        usable, _, _, junction = self.lookup(tokens)
        for depth in (usable, 0) if usable else (0,):
            path = self.path(tokens)[:depth]
            last = [path[min(at + self.step, depth) - 1] for at in range(0, depth, self.step)]
            shared = [self.blocks[one].page for one in last]
            kept = list(self.states[path[-1]]) if depth and self.groups else []
            inside = bool(depth % self.step)
            total = -(-(len(tokens) - 1) // self.page_tokens)
            need = total - len(shared) + inside + self.groups
            unheld = sum(page not in self.references for page in (*shared, *kept))
            if need + unheld <= len(self.order):
                break
        else:
            return None
        touched = {depth * self.block: (path[-1], self.states.get(path[-1]))} if depth else {}
        self.retain([*shared, *kept])
        pages = self.alloc(total - len(shared) + inside)
        states = self.alloc(self.groups)
        self.free([*kept, *([shared.pop()] if inside else [])])
        self.requests[name] = request = {
            "tokens": tokens,
            "pages": [*shared, *pages],
            "states": states,
            "units": {one: Unit() for one in self.path(tokens)},
            "pending": set(),
            "junction": junction * self.block,
            "stops": self.retention.stop_boundaries(
                len(tokens) - 1, self.block, junction * self.block
            ),
            "computed": depth * self.block,
            "done": depth,
            "touched": touched,
            "intermediate": 0,
        }
        self.announce(request)
        return depth * self.block

    def grow(self, name, num_tokens):
        request = self.requests[name]
        first = request["computed"] // self.page_tokens
        total = -(-num_tokens // self.page_tokens)
        pages = request["pages"]
        shared = [
            index
            for index in range(first, min(len(pages), total))
            if self.references[pages[index]] > 1 or pages[index] in self.published
        ]
        num_new = max(total - len(pages), 0)
        if len(shared) + num_new > len(self.order):
            return False
        taken = self.alloc(len(shared) + num_new)
        for index in shared:
            old, pages[index] = pages[index], taken.pop(0)
            self.free([old])
        pages.extend(taken)
        return True

    def computed(self, name, num_tokens):
        request = self.requests[name]
        request["computed"] = num_tokens
        whole = min(num_tokens, len(request["tokens"]) - 1) // self.block
        if whole == request["done"]:
            return
        request["done"] = whole
        path = self.path(request["tokens"])[:whole]
        boundary = whole * self.block
        states = []
        if boundary == num_tokens and self.groups and path[-1] not in self.states:
            if self.groups > len(self.order):
                self.num_skipped += 1
            else:
                states = self.alloc(self.groups)
        if any(one not in self.blocks and one not in request["pending"] for one in path):
            self.announce(request)
        new = [one for one in path if one in request["pending"] and one not in self.blocks]
        request["pending"] -= set(path)
        for one in new:
            self.blocks[one] = request["units"][one]
        for one in new:
            index = path.index(one)
            page = request["pages"][index // self.step]
            self.keep_unit(request["units"][one], page)
            for before in path[index // self.step * self.step : index]:
                if self.blocks.get(before) is request["units"][before]:
                    self.keep_unit(request["units"][before], page)
        if states:
            self.keep_states(request, boundary, path, states)

    def keep_states(self, request, boundary, path, states):
        self.states[path[-1]] = states
        self.published |= set(states)
        self.free(states)
        touched = request["touched"]
        touched[boundary] = (path[-1], states)
        old = request["intermediate"]
        if old and self.is_alive(touched.get(old)):
            self.drop_states([touched.pop(old)[0]])
        keeps = self.retention.keeps(boundary, request["stops"])
        request["intermediate"] = 0 if keeps else boundary
        most = self.retention.max_per_path
        if most is not None:
            there = [one for one in path if one in self.states]
            loose = [
                one
                for one in there[:-1]
                if len(one) - 1 != request["junction"] and not self.is_fork(one)
            ]
            for one in loose[: max(len(there) - most, 0)]:
                self.drop_states([one])
                touched.pop(len(one) - 1, None)

    def is_alive(self, touched):
        return touched is not None and self.states.get(touched[0]) is touched[1]

    def is_fork(self, prefix):
        entries = [
            *self.blocks,
            *self.states,
            *(p for r in self.requests.values() for p in r["pending"]),
        ]
        size = len(prefix) + self.block
        children = {
            one[:size] for one in entries if len(one) >= size and one[: len(prefix)] == prefix
        }
        return len(children) > 1

    def extend(self, name, tokens):
        request = self.requests[name]
        before = len(self.path(request["tokens"]))
        request["tokens"] += tokens
        path = self.path(request["tokens"])
        if len(path) > before:
            request["units"].update({one: Unit() for one in path[before:]})
            self.announce(request)

    def fork(self, name, new):
        request = self.requests[name]
        if self.groups > len(self.order):
            return False
        states = self.alloc(self.groups)
        pages = request["pages"][: -(-request["computed"] // self.page_tokens)]
        self.retain(pages)
        units = {one: Unit() for one in self.path(request["tokens"])}
        self.requests[new] = {
            **request,
            "pages": pages,
            "states": states,
            "units": units,
            "touched": {},
            "intermediate": 0,
        }
        self.announce(self.requests[new])
        return True

    def release(self, name):
        request = self.requests.pop(name)
        deepest = max(request["computed"], 1)
        held = [
            (min((index + 1) * self.page_tokens, deepest), 0, [page])
            for index, page in enumerate(request["pages"])
        ]
        for boundary, entry in request["touched"].items():
            pages = list(entry[1] or []) if self.is_alive(entry) else []
            self.retain(pages)
            held.append((boundary, 1, pages))
        held.sort(reverse=True)
        self.free([*request["states"], *(page for _, _, pages in held for page in pages)])

    def reset(self):
        if self.requests:
            return False
        pages = [*self.published]
        self.blocks.clear()
        self.states.clear()
        self.withdraw(pages)
        return True
