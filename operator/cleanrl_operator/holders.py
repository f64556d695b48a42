"""Which runs hold which claims. Most runs have a claim of their own, so what nobody holds any more must not be remembered."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from cleanrl_operator.cache import Key

Claim = tuple[str, str]
"""Namespace and name."""
NOBODY: frozenset[Key] = frozenset()


class Holders:
    """Runs by claim and claims by run."""

    def __init__(self) -> None:
        self._by_claim: dict[Claim, set[Key]] = {}
        self._by_run: dict[Key, frozenset[Claim]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._by_run

    def __len__(self) -> int:
        """How many claims are held."""
        return len(self._by_claim)

    def of(self, claim: Claim) -> AbstractSet[Key]:
        """The runs that hold this claim."""
        return self._by_claim.get(claim, NOBODY)

    def hold(self, key: Key, claims: frozenset[Claim]) -> frozenset[Claim]:
        """The run holds exactly these claims from now on; the claims for which that is a change."""
        before = self._by_run.pop(key, frozenset())
        if claims:
            self._by_run[key] = claims
        for claim in before - claims:
            self._by_claim[claim].discard(key)
            if not self._by_claim[claim]:
                del self._by_claim[claim]
        for claim in claims - before:
            self._by_claim.setdefault(claim, set()).add(key)
        return before ^ claims
