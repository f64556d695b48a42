"""Weights & Biases: online with a key, else offline with the command that uploads the run later.

`resolve` turns extras and environment into the child's environment. The key and the proxies (which may hold a
password) go there and nowhere else: no file, no log, no message. `discovered` says afterwards what W&B left on disk.
"""

from __future__ import annotations

import netrc
import os
import re
import shlex
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cleanrl_worker.plainfile import open_plain
from cleanrl_worker.redact import HIDDEN

DEFAULT_BASE_URL = "https://api.wandb.ai"
RUN_FOLDER = re.compile(r"(offline-)?run-\d{8}_\d{6}-([A-Za-z0-9_.\-]+)")
_LOCAL = ("127.0.0.1", "localhost", "::1")
_RUN_URL = re.compile(
    rb"https?://[!-.0-?A-~]{1,253}"
    rb"(?:/[\w.\-]{1,128}){0,8}?"  # a server of one's own may be below a path
    rb"/([\w.\-]{1,128})/([\w.\-]{1,128})/runs/([\w.\-]{1,128})"
)
_MAX_LOG_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Plan:
    """What a run does about W&B. `environment` holds secrets: it is for the child process only."""

    enabled: bool
    mode: str
    environment: dict[str, str] = field(repr=False)
    entity: str | None = None
    project: str | None = None
    run_id: str | None = None
    notes: tuple[str, ...] = ()
    """Sentences for the log."""
    cut_off: bool = False
    """It would be online if the server could be reached."""

    @property
    def uploads_at_end(self) -> bool:
        """It is offline for want of a network only: there is a key."""
        return self.cut_off and bool(self.environment.get("WANDB_API_KEY"))

    def manifest(self) -> dict[str, Any]:
        """The part of it that may be written down."""
        return {
            "enabled": self.enabled,
            "mode": self.mode,
            "entity": self.entity,
            "project": self.project,
            "run_id": self.run_id,
        }


def wanted(extras: Mapping[str, Any]) -> bool:
    """Whether a config asks for W&B: `track_wandb`, `track`, or the algorithm's own `track` flag."""
    params = extras.get("algo_params")
    params = params if isinstance(params, Mapping) else {}
    return any(_truth(value) for value in (extras.get("track_wandb"), extras.get("track"), params.get("track")))


def resolve(
    extras: Mapping[str, Any],
    environ: Mapping[str, str],
    run_dir: Path,
    run_id: str,
    *,
    enabled: bool | None = None,
) -> Plan:
    """The plan for one run. `enabled` overrides what the extras say."""
    enabled = wanted(extras) if enabled is None else enabled
    entity = _text(extras.get("wandb_entity")) or environ.get("WANDB_ENTITY") or None
    project = (
        _text(extras.get("wandb_project_name"))
        or _text(extras.get("wandb_project"))
        or environ.get("WANDB_PROJECT")
        or None
    )
    if not enabled:
        # A script that calls W&B all the same must not wait for a server or ask for a key.
        mode = environ.get("WANDB_MODE") or "offline"
        return Plan(False, mode, {"WANDB_MODE": mode}, entity, project)
    folder = run_dir / "wandb"
    wandb_run = _text(extras.get("wandb_run_name")) or environ.get("WANDB_RUN_ID") or run_id
    environment = {
        "WANDB_DIR": str(folder),
        "WANDB_CACHE_DIR": str(folder / "cache"),
        "WANDB_CONFIG_DIR": str(folder / "config"),
        "WANDB_DATA_DIR": str(folder / "data"),
        "WANDB_SILENT": environ.get("WANDB_SILENT", "false"),
        "WANDB_NAME": _text(extras.get("wandb_run_name")) or environ.get("WANDB_NAME") or run_id,
        "WANDB_RUN_ID": _run_id(wandb_run),
        "WANDB_RESUME": environ.get("WANDB_RESUME", "allow"),  # the next attempt goes on with the same run
        "WANDB_ERROR_REPORTING": environ.get("WANDB_ERROR_REPORTING", "false"),  # crash reports go to a third party
    }
    named = {
        "WANDB_ENTITY": entity,
        "WANDB_PROJECT": project,
        "WANDB_EMAIL": _text(extras.get("wandb_email")),
        "WANDB_RUN_GROUP": _text(extras.get("wandb_group")),
        "WANDB_TAGS": _tags(extras.get("wandb_tags")),
    }
    environment.update({name: value for name, value in named.items() if value})
    key = environ.get("WANDB_API_KEY", "").strip() or _key(extras)
    mode, note = _mode(environ, key)
    environment["WANDB_MODE"] = mode
    if key:
        environment["WANDB_API_KEY"] = key
    proxies, proxy_note = resolve_proxies(extras, environ)
    environment.update(proxies)
    notes = tuple(text for text in (note, proxy_note) if text)
    return Plan(True, mode, environment, entity, project, environment["WANDB_RUN_ID"], notes)


def unless_unreachable(plan: Plan, extras: Mapping[str, Any], environ: Mapping[str, str]) -> Plan:
    """The plan, turned to offline when the server can't be reached: W&B itself would wait for minutes, then fail the run."""
    if plan.mode != "online":
        return plan
    reached, sentence = probe({**environ, **plan.environment}, extras)
    if reached:
        return plan
    return offline_for_now(plan, sentence)


def offline_for_now(plan: Plan, why: str) -> Plan:
    """The same plan, offline, to be uploaded at the end."""
    note = f"W&B is kept offline, and uploaded at the end of the run if that is possible then: {why}"
    environment = {**plan.environment, "WANDB_MODE": "offline"}
    return replace(plan, mode="offline", environment=environment, notes=(*plan.notes, note), cut_off=True)


def resolve_proxies(extras: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """Proxy variables for a run with W&B on, and a sentence about them.

    First of: extras, WANDB_VPN_*, WANDB_*, the usual upper-case and lower-case variables. Nothing is changed unless a
    proxy was given for W&B or `wandb_use_vpn_proxy` is set; the VPN's variables are passed over when it is set to
    false.
    """
    use_vpn = extras.get("wandb_use_vpn_proxy")
    asked = _truth(use_vpn)
    found: dict[str, str] = {}
    for scheme in ("http", "https"):
        upper = scheme.upper()
        own = [_text(extras.get(f"wandb_{scheme}_proxy"))]
        if use_vpn is None or asked:
            own.append(environ.get(f"WANDB_VPN_{upper}_PROXY", "").strip())
        own.append(environ.get(f"WANDB_{upper}_PROXY", "").strip())
        general = [environ.get(f"{upper}_PROXY", "").strip(), environ.get(f"{scheme}_proxy", "").strip()]
        chosen = next(filter(None, own), None)
        asked = asked or chosen is not None
        chosen = chosen or next(filter(None, general), None)
        if chosen:
            found[scheme] = chosen
    if not asked:
        return {}, None
    if not found:
        return {}, (
            "wandb_use_vpn_proxy is set, but no proxy is: give extras.wandb_https_proxy or WANDB_VPN_HTTPS_PROXY."
        )
    environment: dict[str, str] = {}
    for scheme, url in found.items():
        for name in (f"WANDB_{scheme.upper()}_PROXY", f"{scheme.upper()}_PROXY", f"{scheme}_proxy"):
            environment[name] = url
    exempt = [part.strip() for part in (environ.get("NO_PROXY") or environ.get("no_proxy") or "").split(",")]
    exempt = [*filter(None, exempt), *(host for host in _LOCAL if host not in exempt)]
    environment["NO_PROXY"] = environment["no_proxy"] = ",".join(exempt)
    shown = ", ".join(f"{scheme} by {_host(url)}" for scheme, url in found.items())
    return environment, f"W&B goes through a proxy: {shown}."


def discovered(
    run_dir: Path, runs: Sequence[str], plan: Mapping[str, Any], extras: Mapping[str, Any]
) -> dict[str, Any]:
    """The manifest's account of W&B: `runs` are the run folders found, relative to `run_dir`."""
    entity = plan.get("entity") or _text(extras.get("wandb_entity"))
    project = plan.get("project") or _text(extras.get("wandb_project_name")) or _text(extras.get("wandb_project"))
    listed, offline = [], []
    newest = None
    for path in runs:
        match = RUN_FOLDER.fullmatch(Path(path).name)
        if match is None:
            continue
        listed.append({"path": path, "run_id": match[2], "offline": match[1] is not None})
        newest = match[2]
        if match[1] is not None and not any((run_dir / path).glob("*.wandb.synced")):
            offline.append(path)
    run_path = _text(extras.get("wandb_run_path")) or None
    url = plan.get("url") or (logged_url(run_dir, newest) if newest else None)
    if not run_path and newest:
        if url:
            run_path = "/".join([*urlsplit(url).path.strip("/").split("/")[-4:-2], newest])
        elif entity and project:
            run_path = f"{entity}/{project}/{newest}"
    return {
        "enabled": bool(plan.get("enabled")) or bool(listed),
        "run_path": run_path,
        "url": url,
        "entity": entity or None,
        "project": project or None,
        "runs": listed,
        # One command for each: one torn part stops a list. Quoted: a folder's name may be anybody's.
        "sync_command": " && ".join(f"wandb sync {shlex.quote(path)}" for path in offline) or None,
    }


def probe(environ: Mapping[str, str], extras: Mapping[str, Any], timeout: float = 5.0) -> tuple[bool, str]:
    """Try to reach W&B the way a run would, without a key: (reached, a sentence). For `--check`."""
    base = environ.get("WANDB_BASE_URL") or DEFAULT_BASE_URL
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return False, "WANDB_BASE_URL is not an http(s) address."
    variables, _ = resolve_proxies(extras, environ)
    merged = {**environ, **variables}
    proxy = merged.get(f"{parts.scheme.upper()}_PROXY") or merged.get(f"{parts.scheme}_proxy")
    exempt = (merged.get("NO_PROXY") or merged.get("no_proxy") or "").split(",")
    proxy = None if parts.hostname in (host.strip() for host in exempt) else proxy
    way = f" through {_host(proxy)}" if proxy else ""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({parts.scheme: proxy} if proxy else {}))
    try:
        request = urllib.request.Request(base, method="HEAD")  # noqa: S310 - the scheme was checked above
        with opener.open(request, timeout=timeout) as answer:
            return True, f"{parts.hostname} answered {answer.status}{way}."
    except urllib.error.HTTPError as error:  # any answer is an answer
        reached = error.code != 407
        return reached, f"{parts.hostname if reached else 'the proxy'} answered {error.code}{way}."
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", error)
        return (
            False,
            f"{parts.hostname} could not be reached{way}: {type(cause).__name__}: {_scrub(str(cause), proxy)}.",
        )


def _mode(environ: Mapping[str, str], key: str) -> tuple[str, str | None]:
    asked = environ.get("WANDB_MODE", "").strip().lower()
    if asked in ("offline", "disabled"):
        return asked, f"W&B is {asked}, as WANDB_MODE says."
    if key or _logged_in(environ):
        return "online", None
    return "offline", (
        "W&B has no API key, so the run is kept offline; upload it later with the command in analytics.json "
        "(artifacts.wandb.sync_command), or set WANDB_API_KEY."
    )


def _logged_in(environ: Mapping[str, str]) -> bool:
    """Whether `wandb login` has left a key for the server in the user's netrc."""
    host = urlsplit(environ.get("WANDB_BASE_URL") or DEFAULT_BASE_URL).hostname or ""
    home = Path(environ.get("HOME") or os.devnull)
    path = Path(environ["NETRC"]) if environ.get("NETRC") else home / ".netrc"
    try:
        return netrc.netrc(path).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _key(extras: Mapping[str, Any]) -> str:
    key = _text(extras.get("wandb_api_key"))
    return "" if key == HIDDEN else key  # a saved config that was redacted


def _run_id(text: str) -> str:
    """W&B refuses some characters and long ids."""
    return re.sub(r"[^A-Za-z0-9_.\-]", "-", text)[:64]


def logged_url(run_dir: Path, run_id: str) -> str | None:
    """The run's address, which W&B prints when it is online."""
    for name in ("logs/cleanrl.stderr.log", "logs/cleanrl.stdout.log"):
        try:
            with open_plain(run_dir / name) as file:
                text = file.read(_MAX_LOG_BYTES)
        except OSError:
            continue
        if url := url_in(text, run_id):
            return url
    return None


def url_in(text: bytes, run_id: str | None = None) -> str | None:
    """The address of a run in what W&B has printed."""
    for match in _RUN_URL.finditer(text):
        if run_id in (None, match[3].decode()):
            return match[0].decode()
    return None


def _host(url: str) -> str:
    """A proxy's address without the user and password that it may hold."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        port = ""
    return f"{parts.hostname or 'an unreadable address'}{port}"


def _scrub(text: str, proxy: str | None) -> str:
    return text.replace(proxy, _host(proxy)) if proxy else text


def _tags(value: Any) -> str:
    """W&B takes them as one text with commas; W&B's own limit is 64 characters each."""
    tags = value if isinstance(value, list | tuple) else _text(value).split(",")
    return ",".join(tag[:64] for tag in (_text(tag).replace(",", " ") for tag in tags) if tag)


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _truth(value: Any) -> bool:
    return value.strip().lower() in ("1", "true", "yes", "on") if isinstance(value, str) else bool(value)
