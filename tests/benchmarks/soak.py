"""Many live runs with churn for hours: memory and connections have to stay where they are, and the log quiet.

    python tests/benchmarks/soak.py [--minutes 120] [--live 200] [--record build/soak.jsonl] [--fresh]

Runs on pretended nodes whose workers are players (operator_fleet.py): each talks as a worker does for one to five minutes,
ends, and is replaced by a new one; half of the ended runs are deleted at once, of the others the last 100 stay. Every ten
seconds the operator's memory, descriptors and sockets are noted in the record. A soak that was stopped goes on with its record
until the minutes are full; each stretch has an operator of its own. Slopes are those of the second half of the newest stretch,
counted from the fifth minute on that all of its runs live: before, more runs are more memory, rightly, and a process finds its
size. A leak goes on. Their 95 % intervals are over means of a minute, wider where these follow each other. The short form of 20
minutes shows a fast leak, and not a slow one. Writes docs/benchmarks/soak.{json,md}.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from chaos import Patient
from jobs import saying_when_stopped
from operator_fleet import Player, _talk, bound_token
from operator_lab import (
    Client,
    Cluster,
    Figure,
    OperatorProcess,
    authority,
    cluster,
    completed,
    make_namespace,
    nodes_for,
    note,
    pods_path,
    run_body,
    runs_path,
    surroundings,
    until_async,
)
from reporting import publish_figures

Object = dict[str, Any]
SAMPLE_SECONDS = 10.0
WARM_UP_MINUTES = 5.0
"""Left out after a stretch's runs are all there; of a short one a quarter."""
ALL_THERE = 0.95
"""The share of the most that ever lived at once which counts as all: some are always on their way in or out."""
SHORTEST, LONGEST = 60.0, 300.0
SHORTEST_TO_JUDGE = 15.0
"""Minutes: in a shorter stretch a process is still finding its size."""
KEPT = 100
"""Finished runs that stay: more and more of them would be more and more memory, rightly."""
EXPLAINED = {
    r"refused: the run is (over|done with this pod)": "a player that speaks a moment longer than its pod lives",
}
"""Lines of warning that belong to what is done here, and why."""


class Crowd:
    """So many live runs; each that ends is replaced."""

    def __init__(self, made: Cluster, client: Patient, operator: OperatorProcess, live: int, seed: int) -> None:
        self.client, self.live = client, live
        self.namespace = make_namespace(made, "soak")
        self._target, self._ca = f"localhost:{operator.gateway_port}", authority(made)
        self._chance = random.Random(seed)
        self._numbers = 0
        self.ended = 0
        self.wrong: list[str] = []
        self._kept: list[str] = []
        self.talking = 0

    async def keep(self) -> None:
        """Until cancelled."""
        places = [asyncio.create_task(self._place(number)) for number in range(self.live)]
        try:
            await asyncio.gather(*places)
        finally:
            for place in places:
                place.cancel()

    async def _place(self, number: int) -> None:
        await asyncio.sleep(number * 0.3)
        while True:
            self._numbers += 1
            name = f"run-{self._numbers:06}"
            try:
                await self._life(name, self._chance.uniform(SHORTEST, LONGEST), self._chance.random() < 0.5)
                self.ended += 1
            except Exception as error:  # noqa: BLE001 - counted and shown at the end
                self.wrong.append(f"{name}: {error!r}")

    async def _life(self, name: str, seconds: float, deleted: bool) -> None:
        path = runs_path(self.namespace, name)
        await self.client("POST", runs_path(self.namespace), run_body(name))
        status = await self._reach(path, "HSHK")
        token = await bound_token(self.client, self.namespace, status["podName"], status["podUID"])  # type: ignore[arg-type]
        player = Player(self._target, self._ca, token, status["runId"], status["attempt"])
        connected = asyncio.create_task(player.run())
        player.emit("run_started", attempt=status["attempt"])
        words = asyncio.create_task(_talk(player))
        self.talking += 1
        try:
            await asyncio.sleep(seconds)
            words.cancel()
            await player.until_acknowledged(player.emit("run_completed"))
            body = {"status": completed(status["runId"], status["attempt"])}
            await self.client("PATCH", pods_path(self.namespace, status["podName"], "status"), body)
            status = await self._reach(path, "TERM")
            if status.get("outcome") != "completed":
                self.wrong.append(f"{name}: {status.get('outcome')} {status.get('reason')}")
        finally:
            self.talking -= 1
            words.cancel()
            player.close()
            connected.cancel()
        if deleted:
            await self.client("DELETE", path)
        else:
            self._kept.append(path)
            while len(self._kept) > KEPT:
                await self.client("DELETE", self._kept.pop(0))
            await self.client("DELETE", pods_path(self.namespace, status["podName"]), {"gracePeriodSeconds": 0})

    async def _reach(self, path: str, state: str) -> Object:
        deadline = time.monotonic() + 300
        while True:
            status = (await self.client("GET", path)).get("status") or {}
            if status.get("fsmState") == state:
                return dict(status)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{state} was not reached: {status.get('fsmState')}")
            await asyncio.sleep(1)


def sample(operator: OperatorProcess, crowd: Crowd) -> Object:
    """What the operator holds now."""
    assert operator.process is not None
    folder = Path(f"/proc/{operator.process.pid}/fd")
    sockets = descriptors = 0
    for entry in folder.iterdir():
        with suppress(OSError):
            descriptors += 1
            sockets += str(entry.readlink()).startswith("socket:")
    cpu, memory, _ = operator.usage()
    return {
        "memory": round(memory, 2), "descriptors": descriptors, "sockets": sockets, "cpu": cpu, "talking": crowd.talking,
        "ended": crowd.ended, "load": round(os.getloadavg()[0], 2),
    }  # fmt: skip


def slope(minutes: list[float], values: list[float]) -> tuple[float, float, float]:
    """Per hour, with its 95 % interval: a line through the means of each minute.

    A minute that differs from the line takes the next one along, so there is less in them than their number says: the interval
    is that of as many independent ones as their correlation leaves.
    """
    whole = sorted({int(minute) for minute in minutes})
    means = np.array(
        [np.mean([value for at, value in zip(minutes, values, strict=True) if int(at) == each]) for each in whole]
    )
    hours = (np.array(whole) + 0.5) / 60
    if len(whole) < 4:
        return float("nan"), float("-inf"), float("inf")
    centred = hours - hours.mean()
    rise = float(centred @ means / (centred @ centred))
    left = means - means.mean() - rise * centred
    error = float(np.sqrt(left @ left / (len(whole) - 2) / (centred @ centred)))
    along = float(left[1:] @ left[:-1] / (left @ left)) if left @ left > 0 else 0.0
    along = min(max(along, 0.0), 0.95)
    error *= float(np.sqrt((1 + along) / (1 - along)))
    quantile = 1.96 + 2.4 / (len(whole) - 2)  # near Student's for more than three points
    return rise, rise - quantile * error, rise + quantile * error


def unexplained(log: str) -> Counter[str]:
    """Lines of warning or worse that nothing here explains, without their numbers."""
    found: Counter[str] = Counter()
    for line in log.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            entry = {"level": "error", "message": line}
        said = str(entry.get("message", ""))
        serious = str(entry.get("level", "")).lower() in ("warning", "error", "critical")
        if serious and not any(re.search(pattern, said) for pattern in EXPLAINED):
            found[re.sub(r"[0-9a-f-]{8,}|\d+", "#", said)[:160]] += 1
    return found


async def stretch(args: argparse.Namespace, minutes: float, number: int) -> None:
    """One operator's time, noted in the record."""
    nodes = nodes_for(2 * args.live)
    restarts: list[str] = []
    with (
        cluster(nodes) as made,
        tempfile.TemporaryDirectory() as folder,
        OperatorProcess(made, Path(folder)) as operator,
        args.record.open("a") as record,
    ):
        operator.start()
        async with Client(made, connections=args.live) as client:
            crowd = Crowd(made, Patient(client), operator, args.live, number)
            keeping = asyncio.create_task(crowd.keep())
            began, said = time.monotonic(), 0.0
            try:
                while (passed := (time.monotonic() - began) / 60) < minutes:
                    await asyncio.sleep(SAMPLE_SECONDS)
                    if operator.keep_alive():
                        number += 1  # another process: its memory has nothing to do with the last one's
                        restarts.append(f"after {passed:.1f} min: {last_word(operator.log.read_text())}")
                        note(f"the operator had ended {restarts[-1]}")
                        await until_async(operator.leads, "the operator leads again", 300)
                    noted = {"stretch": number, "minute": round(passed, 3), **sample(operator, crowd)}
                    record.write(json.dumps(noted) + "\n")
                    record.flush()
                    if passed - said > 1:
                        said = passed
                        note(f"{passed:.0f} of {minutes:.0f} min: {noted}")
                    if keeping.done():
                        await keeping
            finally:  # what went wrong before it was stopped counts too
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
                ending = {
                    "stretch": number,
                    "wrong": crowd.wrong[:20],
                    "restarts": restarts,
                    "unexplained": dict(unexplained(operator.log.read_text()).most_common(20)),
                    **surroundings(),
                }
                record.write(json.dumps(ending) + "\n")
        if args.keep_log:
            args.keep_log.write_text(operator.log.read_text())
        operator.stop()


def lasted(lines: list[Object]) -> dict[int, float]:
    """Minutes by stretch. One that began when an operator had ended goes on with the clock of the one before."""
    times: dict[int, list[float]] = {}
    for line in lines:
        if "minute" in line:
            times.setdefault(line["stretch"], []).append(line["minute"])
    return {number: max(minutes) - min(minutes) for number, minutes in times.items()}


def last_word(log: str) -> str:
    """The last thing that the operator said that was more than information."""
    for line in reversed(log.splitlines()):
        try:
            entry = json.loads(line)
        except ValueError:
            return line[:200]
        if entry.get("level") != "info":
            return str(entry.get("message"))[:200]
    return "it said nothing"


def crowded_from(samples: list[Object]) -> float:
    """The minute from which on all of a stretch's runs live."""
    most = max(line["talking"] for line in samples)
    return float(min(line["minute"] for line in samples if line["talking"] >= ALL_THERE * most))


class TooShort(Exception):
    """There is nothing to judge yet; the message says what to do."""


def judge(lines: list[Object]) -> list[Figure]:
    """The record as figures. Raises TooShort."""
    samples = [line for line in lines if "memory" in line]
    endings = [line for line in lines if "unexplained" in line]
    begins = {each: crowded_from([line for line in samples if line["stretch"] == each]) for each in lasted(lines)}
    cold = {each: begins[each] + min(WARM_UP_MINUTES, minutes / 4) for each, minutes in lasted(lines).items()}
    warm = [line for line in samples if line["minute"] >= cold[line["stretch"]]]
    minutes = sum(lasted(lines).values())
    if not warm:
        raise TooShort(
            f"{minutes:.1f} minutes are too few to judge, since all runs have to live for a while: ask for 5 with "
            "--minutes 5, or for more; what is in the record counts"
        )
    live = float(np.median([line["talking"] for line in warm]))
    figures = [
        Figure("minutes", f"{minutes:.0f}", "at least 120", minutes >= 119),
        Figure("live runs, median", f"{live:.0f}", "about 200", live >= 190),
        Figure("runs that came and went", f"{sum(_last(samples, each, 'ended') for each in {s['stretch'] for s in samples})}"),
        Figure("operator's memory after the first minutes", f"{min(s['memory'] for s in warm):.0f} to "
               f"{max(s['memory'] for s in warm):.0f} MiB"),
        Figure("operator's CPU", f"{100 * _rate(samples):.1f} % of a core"),
    ]  # fmt: skip
    watched = (("memory", "memory", "MiB"), ("connections", "sockets", "sockets"), ("descriptors", "descriptors", ""))
    for name, key, unit in watched:
        newest = max((line["stretch"] for line in warm), default=0)
        chosen = [line for line in warm if line["stretch"] == newest]
        figures.append(Figure(f"{name}, first half included", _slope_of(chosen, key, unit)[0]))
        middle = (chosen[0]["minute"] + chosen[-1]["minute"]) / 2
        half = _slope_of([line for line in chosen if line["minute"] >= middle], key, unit)
        known = half[1] if lasted(lines)[newest] >= SHORTEST_TO_JUDGE else None
        figures.append(Figure(f"{name}, slope", half[0], "0 within the interval, or falling", known))
    wrong = [sentence for ending in endings for sentence in ending["wrong"]]
    odd: Counter[str] = Counter()
    for ending in endings:
        odd.update(ending["unexplained"])
    restarts = [sentence for ending in endings for sentence in ending.get("restarts", [])]
    figures.append(
        Figure("times that the operator ended", "; ".join([f"{len(restarts)}", *restarts[:3]]), "0", not restarts)
    )
    figures.append(Figure("runs that ended wrongly", f"{len(wrong)}", "0", not wrong))
    figures.append(Figure("unexplained lines of warning or worse", f"{sum(odd.values())}", "0", not odd))
    for said, count in odd.most_common(8):
        figures.append(Figure("line in the log", f"{count} times: {said}"))
    figures.append(Figure("load of the machine, median", f"{np.median([line['load'] for line in samples]):.1f}"))
    return figures


def _slope_of(samples: list[Object], key: str, unit: str) -> tuple[str, bool | None]:
    """The slope in words, and whether it is flat or falling."""
    rise, low, high = slope([line["minute"] for line in samples], [line[key] for line in samples])
    if np.isnan(rise):
        return "too few minutes to say", None
    text = f"{rise:+.2f} {unit} an hour ({low:+.2f} to {high:+.2f}) from minute {samples[0]['minute']:.0f} on"
    return text, low <= 0


def _last(samples: list[Object], number: int, key: str) -> int:
    return int([line[key] for line in samples if line["stretch"] == number][-1])


def _rate(samples: list[Object]) -> float:
    first, last = samples[0], [line for line in samples if line["stretch"] == samples[0]["stretch"]][-1]
    return float((last["cpu"] - first["cpu"]) / max(1e-9, 60 * (last["minute"] - first["minute"])))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--live", type=int, default=200)
    parser.add_argument("--record", type=Path, default=Path("build/soak.jsonl"), help="goes on with it, if it is there")
    parser.add_argument("--fresh", action="store_true", help="forget what is in the record")
    parser.add_argument("--keep-log", type=Path, help="where the operator's log goes")
    parser.add_argument("--out", type=Path, default=None, help="where results go instead of docs/benchmarks")
    args = parser.parse_args()
    if not args.minutes > 0 or args.live < 1:
        parser.error("--minutes takes more than 0, --live 1 or more")
    args.record.parent.mkdir(parents=True, exist_ok=True)
    if args.fresh:
        args.record.unlink(missing_ok=True)
    lines = _read(args.record)
    done = lasted(lines)
    left = args.minutes - sum(done.values())
    facts = surroundings()
    if left > 1:
        note(f"{sum(done.values()):.0f} min are in the record, {left:.0f} to go; load {facts['load']}")
        asyncio.run(stretch(args, left, max(done, default=0) + 1))
    elif done:
        note(f"{args.record} holds {sum(done.values()):.0f} min already: nothing is run; --fresh forgets them")
    try:
        figures = judge(_read(args.record))
    except TooShort as short:
        print(f"soak: {short}", file=sys.stderr)
        return 1
    part = {"title": f"{args.live} live runs", **facts, "figures": [dataclasses.asdict(figure) for figure in figures]}
    publish_figures("soak", "Soak: many live runs with churn", __doc__ or "", {"soak": part}, args.out)
    return 1 if any(figure.good is False and figure.target == "0" for figure in figures) else 0


def _read(path: Path) -> list[Object]:
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):  # half a line: it was killed while it wrote
            found.append(json.loads(line))
    return found


if __name__ == "__main__":
    sys.exit(saying_when_stopped(main, "the same command goes on with its record"))
