"""What became of every candidate of a search: kept, finished, or dropped, and why.

    recorder = Recorder(penalty, limit, beam_size)
    beam_search(step, [limit], beam_size, penalty=penalty, watch=recorder)
    recorder.record

The record is a tree: BEGIN is number 0, and every candidate that was looked at is a node below the
hypothesis that it continues.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from transduce.decoding.search import (
    DEAD,
    NEVER,
    Hypothesis,
    Moment,
    Penalty,
    coverage_of,
    restricted,
)

Fate = Literal["kept", "finished", "duplicate", "cut", "forbidden", "limit"]
"""kept: lives on. finished: ends, an output. duplicate: ends, but an equal output is as good.
cut: others were better. forbidden: may not come here. limit: would live on, but has no room."""
Reason = Literal["bound", "limit", "nothing lives"]
SHOWN = 10
"""How many of the next tokens of a hypothesis are noted."""


@dataclass(frozen=True)
class Candidate:
    """One continuation by one token; a node of the tree."""

    id: int
    parent: int
    token: int
    log_probability: float
    total: float
    """Sum of the log-probabilities from BEGIN on."""
    score: float
    """What the total comes to under the length penalty, at this length."""
    rank: int
    """Place among the candidates of its step, from 1."""
    fate: Fate


@dataclass(frozen=True)
class Hopes:
    """What a hypothesis that was live may be continued by."""

    id: int
    tokens: list[int]
    """The most probable ones, best first, forbidden ones among them."""
    log_probabilities: list[float]


@dataclass(frozen=True)
class RecordedStep:
    """What was live, and what came of it."""

    live: list[Hopes]
    candidates: list[Candidate]


@dataclass(frozen=True)
class End:
    """Why the search ended.

    With `bound`, the best live hypothesis could not have beaten what was found, however it had gone
    on: `bound` = `best_live` / `divisor` is at most `to_beat`.
    """

    reason: Reason
    to_beat: float | None
    """Score of the worst output that is kept; None while there was room for more."""
    best_live: float | None
    """Total of the best hypothesis that was live; None if none was."""
    divisor: float
    """The greatest that the length limit allows."""
    bound: float | None


@dataclass
class Record:
    """The search of one sentence."""

    method: Literal["beam", "sample"]
    beam_size: int
    penalty: Penalty
    limit: int
    steps: list[RecordedStep] = field(default_factory=list)
    end: End | None = None
    outputs: list[Hypothesis] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)
    """The node of each output's last token."""

    def candidates(self) -> dict[int, Candidate]:
        """Return all nodes but BEGIN by number."""
        return {one.id: one for step in self.steps for one in step.candidates}

    def path(self, id: int) -> list[int]:
        """Return the tokens from BEGIN (left out) to a node (included)."""
        nodes, tokens = self.candidates(), []
        while id:
            tokens.append(nodes[id].token)
            id = nodes[id].parent
        return tokens[::-1]


class Recorder:
    """Watches a search and records one of its sentences.

    Args:
        penalty: of the search.
        limit: of the sentence.
        beam_size: of the search.
        method: that looks for the outputs.
        sentence: its place in the batch.
    """

    def __init__(
        self,
        penalty: Penalty,
        limit: int,
        beam_size: int,
        method: Literal["beam", "sample"] = "beam",
        sentence: int = 0,
    ) -> None:
        self.record = Record(method, beam_size, penalty, limit)
        self.sentence = sentence
        self.ids = [0]
        """Of the live hypotheses, in their order."""
        self.count = 1

    def __call__(self, moment: Moment) -> None:
        """Note a step."""
        if self.sentence not in moment.live.sentences:
            return
        row = moment.live.sentences.index(self.sentence)
        live = [i for i in range(len(self.ids)) if float(moment.live.totals[row, i]) > DEAD]
        said = moment.following.log_probs[row].detach().cpu()
        most = said.topk(min(SHOWN, said.size(1)))
        hopes = [
            Hopes(self.ids[i], most.indices[i].tolist(), most.values[i].tolist()) for i in live
        ]
        candidates = self._candidates(moment, row, live)
        self.record.steps.append(RecordedStep(hopes, candidates))
        by_place = {(one.parent, one.token): one.id for one in candidates}
        parents, tokens = moment.parents[row].tolist(), moment.grown.tokens[row, :, -1].tolist()
        self.ids = [
            by_place.get((self.ids[i], token), 0) for i, token in zip(parents, tokens, strict=True)
        ]
        if moment.done[row]:
            self._end(moment, row)

    def _candidates(self, moment: Moment, row: int, live: list[int]) -> list[Candidate]:
        """Return the continuations that were looked at, or could have been, best first."""
        penalty, n = self.record.penalty, moment.live.length + 1
        said = moment.following.log_probs[row].detach().cpu()
        allowed = restricted(moment.following.log_probs, moment.live, moment.rules)[row].cpu()
        coverage = coverage_of(moment.following, moment.live)[row].tolist()
        fates = self._fates(moment, row)
        most = said.topk(min(2 * self.record.beam_size + len(NEVER), said.size(1)))
        places = {(i, token) for i in live for token in most.indices[i].tolist()} | set(fates)
        found = []
        for i, token in places:
            log_prob = float(said[i, token])
            total = float(moment.live.totals[row, i]) + log_prob
            if total == DEAD:
                continue
            order = total + penalty.beta * penalty(n) * coverage[i]
            forbidden = token in NEVER or float(allowed[i, token]) == -math.inf
            fate: Fate = fates.get((i, token), "forbidden" if forbidden else "cut")
            score = penalty.score(total, n, coverage[i])
            found.append((order, (i, token), log_prob, total, score, fate))
        found.sort(key=lambda one: (-one[0], one[1]))
        room = max(4, 2 * self.record.beam_size)
        candidates = []
        for rank, (_, (i, token), log_prob, total, score, fate) in enumerate(found, start=1):
            if rank <= room or (i, token) in fates:
                parent = self.ids[i]
                candidates.append(
                    Candidate(self.count, parent, token, log_prob, total, score, rank, fate)
                )
                self.count += 1
        return candidates

    def _fates(self, moment: Moment, row: int) -> dict[tuple[int, int], Fate]:
        """Return what became of those that the search chose, by hypothesis and token."""
        chosen, grown = moment.chosen, moment.grown
        fates: dict[tuple[int, int], Fate] = {}
        for place, (i, token) in enumerate(
            zip(chosen.parents[row].tolist(), chosen.tokens[row].tolist(), strict=True)
        ):
            if float(chosen.totals[row, place]) > DEAD:
                output = moment.ended.get((row, place))
                fates[i, token] = "cut" if output is None else self._ended(output[1])
        goes_on: Fate = "limit" if grown.length >= self.record.limit else "kept"
        for place, i in enumerate(moment.parents[row].tolist()):
            if float(grown.totals[row, place]) > DEAD:
                fates[i, int(grown.tokens[row, place, -1])] = goes_on
        return fates

    def _ended(self, kept: bool) -> Fate:
        return "finished" if kept else "duplicate"

    def _end(self, moment: Moment, row: int) -> None:
        """Note why the search is over, and what it found."""
        record, alive = self.record, moment.grown.totals[row].max()
        best_live = float(alive) if float(alive) > DEAD else None
        to_beat = moment.to_beat[row] if moment.to_beat[row] > -math.inf else None
        divisor = record.penalty(record.limit)
        reason: Reason = "bound"
        if best_live is None:
            reason = "nothing lives"
        elif moment.grown.length >= record.limit:
            reason = "limit"
        bound = None if best_live is None else best_live / divisor
        record.end = End(reason, to_beat, best_live, divisor, bound)
        record.outputs = list(moment.results[self.sentence])
        paths = {
            tuple(record.path(one.id)): one.id
            for one in record.candidates().values()
            if one.fate in ("finished", "duplicate", "limit", "kept")
        }
        record.output_ids = [paths.get(output.tokens, 0) for output in record.outputs]
