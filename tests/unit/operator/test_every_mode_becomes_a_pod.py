"""What the builders make of a spec: the worker's config, the pod, TensorBoard and its route. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from cleanrl_operator.desired import claim, pod, tensorboard
from cleanrl_operator.policies.source import judge, vouched_for
from cleanrl_operator.run import CONFIG_ANNOTATION, Run
from cleanrl_operator.settings import Settings

from cleanrl_protocol.podconfig import decode

SHA = "c" * 64
TABLE = {"atari": "a:1", "atari+envpool+minigrid": "big:1", "atari+minigrid": "am:1", "atari+base+mujoco": "mj:1"}
MakeRun = Callable[..., Run]


@pytest.fixture
def make_run() -> MakeRun:
    def make(name: str = "run", status: dict[str, Any] | None = None, annotations: Any = None, **spec: Any) -> Run:
        metadata = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
        metadata |= {"creationTimestamp": "2026-01-01T00:00:00Z"} | (
            {"annotations": annotations} if annotations else {}
        )
        whole = {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 1000, **spec}
        return Run.parse({"metadata": metadata, "spec": whole, "status": status or {}})

    return make


def config(body: dict[str, Any]) -> dict[str, Any]:
    return decode(body["metadata"]["annotations"][CONFIG_ANNOTATION]).worker_config


def extras(body: dict[str, Any]) -> dict[str, Any]:
    return dict(config(body)["extras"])


def worker(body: dict[str, Any]) -> dict[str, Any]:
    (container,) = body["spec"]["containers"]
    return dict(container)


def init_names(body: dict[str, Any]) -> list[str]:
    return [each["name"] for each in body["spec"].get("initContainers", [])]


def volume(body: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in body["spec"]["volumes"] if each["name"] == name]
    return dict(found)


def mount(container: dict[str, Any], name: str, path: str) -> dict[str, Any]:
    (found,) = [each for each in container["volumeMounts"] if (each["name"], each["mountPath"]) == (name, path)]
    return dict(found)


# -- images and requirement sets


@pytest.mark.parametrize(
    ("wanted", "image"),
    [
        ([], "default:1"),
        (["base"], "default:1"),
        (["atari"], "a:1"),
        (["minigrid"], "am:1"),
        (["minigrid", "atari"], "am:1"),
        (["envpool"], "big:1"),
        (["base", "mujoco"], "mj:1"),
        (["jax"], "default:1"),
        (["atari", "jax"], "default:1"),
    ],
)
def test_the_smallest_image_that_holds_all_sets_is_taken(make_run: MakeRun, wanted: list[str], image: str) -> None:
    settings = Settings(worker_image="default:1", images=TABLE)
    body = pod.build(make_run(requirements=wanted), settings)
    assert worker(body)["image"] == image
    assert worker(pod.build(make_run(requirements=wanted, image="mine:2"), settings))["image"] == "mine:2"


def test_what_no_image_has_is_installed_before_everything_else(make_run: MakeRun) -> None:
    settings = Settings(worker_image="default:1", images=TABLE, wheel_cache_claim="wheels")
    body = pod.build(make_run(requirements=["jax", "base", "atari"]), settings)
    assert init_names(body) == ["requirements", "tensorboard"]
    install = body["spec"]["initContainers"][0]
    assert install["image"] == "default:1"
    assert install["command"][install["command"].index("--set") + 1] == "atari,jax"
    assert "--index-url" not in install["command"]
    assert mount(install, "wheels", "/wheels")["readOnly"]
    assert volume(body, "wheels")["persistentVolumeClaim"] == {"claimName": "wheels", "readOnly": True}
    assert install["securityContext"] == worker(body)["securityContext"]
    assert {"name": "PYTHONPATH", "value": "/requirements/site-packages"} in worker(body)["env"]
    assert mount(worker(body), "requirements", "/requirements")["readOnly"]
    assert "restartPolicy" not in install


def test_an_index_alone_will_do(make_run: MakeRun) -> None:
    settings = Settings(package_index="https://packages.example/simple")
    install = pod.build(make_run(requirements=["jax"]), settings)["spec"]["initContainers"][0]
    assert install["command"][-2:] == ["--index-url", "https://packages.example/simple"]
    assert "--wheels" not in install["command"]


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        ({"requirements": ["jax"]}, Settings(images=TABLE)),
        ({"requirements": ["atari"]}, Settings(images=TABLE, wheel_cache_claim="w")),
        ({"requirements": ["jax"], "image": "mine:1"}, Settings(wheel_cache_claim="w")),
        ({"requirements": ["base"]}, Settings(wheel_cache_claim="w")),
        ({}, Settings(wheel_cache_claim="w")),
    ],
    ids=["nothing to install from", "an image has it", "the user's own image", "in every image", "nothing asked for"],
)
def test_nothing_is_installed_without_need(make_run: MakeRun, spec: dict[str, Any], settings: Settings) -> None:
    body = pod.build(make_run(**spec), settings)
    assert init_names(body) == ["tensorboard"]
    assert "PYTHONPATH" not in [each["name"] for each in worker(body)["env"]]


# -- modes


def test_a_source_is_read_only_and_its_digest_travels(make_run: MakeRun) -> None:
    kept = {"path": "attempts/1/checkpoints/500", "step": 500, "time": "2026-01-01T00:00:00Z", "sha256": SHA}
    source = make_run("earlier", status={"checkpoint": kept})
    for mode, key in (("resume", "checkpoint_path"), ("policyEval", "policy_path"), ("interactive", "policy_path")):
        body = pod.build(make_run(mode=mode, **{"from": {"run": "earlier"}}), Settings(), vouched_for(source))
        assert extras(body)[key] == "/source/attempts/1/checkpoints/500"
        assert extras(body)["checkpoint_sha256"] == SHA
        assert volume(body, "source")["persistentVolumeClaim"] == {"claimName": source.claim_name, "readOnly": True}
        seen = mount(worker(body), "source", "/source")
        assert (seen["subPath"], seen["readOnly"]) == (source.folder, True)


def test_a_source_that_is_gone_or_replaced_takes_nothing_from_a_run_that_started_from_it(make_run: MakeRun) -> None:
    kept = {"path": "checkpoints/5", "step": 5, "time": "2026-01-01T00:00:00Z", "sha256": SHA}
    known = vouched_for(make_run("earlier", status={"checkpoint": kept}))
    assert known is not None
    now = datetime.now(UTC)
    begun = make_run("later", mode="resume", status={"source": known.dump()}, **{"from": {"run": "earlier"}})
    namesake = {
        "metadata": {"namespace": "ns", "name": "earlier", "uid": "another", "resourceVersion": "9"},
        "spec": {"algo": "dqn", "envId": "CartPole-v1"},
    }
    assert judge(begun, None, now).found == judge(begun, namesake, now).found == known
    body = pod.build(begun, Settings(), judge(begun, None, now).found)
    assert extras(body)["checkpoint_sha256"] == SHA
    assert mount(worker(body), "source", "/source")["subPath"] == known.path


def test_a_tenants_extras_can_not_replace_the_digest(make_run: MakeRun) -> None:
    kept = {"path": "checkpoints/5", "step": 5, "time": "2026-01-01T00:00:00Z", "sha256": SHA}
    forged = {"checkpoint_sha256": "0" * 64, "checkpoint_path": "/elsewhere", "mode": "train"}
    run = make_run(mode="resume", extras=forged, **{"from": {"run": "earlier"}})
    made = extras(pod.build(run, Settings(), vouched_for(make_run("earlier", status={"checkpoint": kept}))))
    assert (made["checkpoint_sha256"], made["checkpoint_path"]) == (SHA, "/source/checkpoints/5")
    assert made["mode"] == "resume_training"


def test_a_source_on_the_same_claim_is_another_folder_of_it(make_run: MakeRun) -> None:
    shared = {"artifacts": {"storage": {"claimName": "shared"}}}
    kept = {"path": "checkpoints/5", "step": 5, "time": "2026-01-01T00:00:00Z", "sha256": SHA}
    source = make_run("earlier", status={"checkpoint": kept}, **shared)
    body = pod.build(make_run(mode="resume", **{"from": {"run": "earlier"}}, **shared), Settings(), vouched_for(source))
    assert mount(worker(body), "run-data", "/source")["subPath"] == source.folder
    assert "source" not in [each["name"] for each in body["spec"]["volumes"]]


def test_a_path_leads_anywhere_on_the_claim_to_be_read(make_run: MakeRun) -> None:
    fields = {"artifacts": {"storage": {"claimName": "shared"}}, "from": {"path": "runs/OLD/checkpoints/5"}}
    body = pod.build(make_run(mode="resume", **fields), Settings())
    assert extras(body)["checkpoint_path"] == "/source/runs/OLD/checkpoints/5"
    seen = mount(worker(body), "run-data", "/source")
    assert (seen["readOnly"], "subPath" in seen) == (True, False)
    assert mount(worker(body), "run-data", "/run-data")["subPath"].startswith("runs/"), (
        "it writes into its own folder alone"
    )
    dry = pod.build(make_run(mode="resume", dryRun=True, **fields), Settings())
    assert volume(dry, "source")["persistentVolumeClaim"] == {"claimName": "shared", "readOnly": True}
    assert mount(worker(dry), "source", "/source")["readOnly"]


def test_an_interactive_run_keeps_its_input_open(make_run: MakeRun) -> None:
    body = pod.build(make_run(mode="interactive", totalTimesteps=None, **{"from": {"path": "policy"}}), Settings())
    assert (worker(body)["stdin"], worker(body)["stdinOnce"]) == (True, False)
    assert (extras(body)["mode"], extras(body)["policy_path"]) == ("interactive", "/source/policy")
    assert "stdin" not in worker(pod.build(make_run(), Settings()))


def test_a_script_comes_from_a_configmap_or_the_image(make_run: MakeRun) -> None:
    given = {"configMapRef": {"name": "scripts"}, "key": "phases.sh"}
    body = pod.build(make_run(mode="script", script=given), Settings())
    assert (extras(body)["mode"], extras(body)["script_path"]) == ("script", "/scripts/phases.sh")
    assert mount(worker(body), "script", "/scripts")["readOnly"]
    mounted = volume(body, "script")["configMap"]
    assert (mounted["name"], mounted["items"]) == ("scripts", [{"key": "phases.sh", "path": "phases.sh"}])
    body = pod.build(make_run(mode="script", script={"path": "/opt/scripts/goto.sh"}), Settings())
    assert extras(body)["script_path"] == "/opt/scripts/goto.sh"
    assert "script" not in [each["name"] for each in body["spec"]["volumes"]]


def test_a_curriculum_is_a_preset_or_a_schedule(make_run: MakeRun) -> None:
    body = pod.build(make_run(mode="curriculum", curriculum={"preset": "babyai-doorkey"}), Settings())
    assert (extras(body)["mode"], extras(body)["curriculum_schedule"]) == ("train", "BABYAI_DOORKEY_CURRICULUM")
    stages = [{"envId": "A-v0", "episodeReturn": 0.8}, {"envId": "B-v0"}]
    body = pod.build(make_run(mode="curriculum", curriculum={"schedule": stages}), Settings())
    assert extras(body)["curriculum_schedule"] == [{"env_id": "A-v0", "episode_return": 0.8}, {"env_id": "B-v0"}]


def test_an_evaluation_says_how(make_run: MakeRun) -> None:
    asked = {"episodes": 7, "gamma": 0.5, "repeat": True, "maxEpisodeSteps": 9}
    body = pod.build(make_run(mode="policyEval", evaluation=asked, **{"from": {"path": "p"}}), Settings())
    made = extras(body)
    assert (made["mode"], made["eval_episodes"], made["eval_gamma"], made["eval_repeat"]) == (
        "policy_eval",
        7,
        0.5,
        True,
    )
    assert made["eval_max_episode_steps"] == 9
    assert "eval_max_episode_seconds" not in made


@pytest.mark.parametrize("asked", ["the field", "the annotation"])
def test_a_dry_run_leaves_nothing_behind(make_run: MakeRun, asked: str) -> None:
    if asked == "the field":
        run = make_run(dryRun=True, artifacts={"tensorboard": {"serve": "always"}})
    else:
        run = make_run(annotations={"mosaic.dev/dry-run": "true"}, artifacts={"tensorboard": {"serve": "always"}})
    body = pod.build(run, Settings())
    assert config(body)["dry_run"] is True
    assert volume(body, "run-data")["emptyDir"] == {}
    assert init_names(body) == []
    assert claim.build(run, Settings()) is None
    assert not tensorboard.is_served(run, Settings())
    for other in (make_run(), make_run(annotations={"mosaic.dev/dry-run": "no"})):
        assert "dry_run" not in config(pod.build(other, Settings()))


@pytest.mark.parametrize("fields", [{}, {"artifacts": {"tensorboard": {"enabled": False}}}, {"dryRun": True}])
def test_every_container_fits_a_quota_that_counts_limits(make_run: MakeRun, fields: dict[str, Any]) -> None:
    run, settings = make_run(requirements=["atari"], **fields), Settings(package_index="https://example.org/simple")
    specs = [pod.build(run, settings)["spec"], tensorboard.deployment(run, settings)["spec"]["template"]["spec"]]
    for container in [each for spec in specs for each in (*spec["containers"], *spec.get("initContainers", []))]:
        for bound in ("requests", "limits"):
            assert {"cpu", "memory"} <= container["resources"][bound].keys(), f"{container['name']} has no {bound}"


# -- TensorBoard

ALWAYS = {"artifacts": {"tensorboard": {"serve": "always"}}}


def test_curves_are_written_where_they_are_served_or_not_at_all(make_run: MakeRun) -> None:
    for given in ({}, {"tensorboard_dir": "runs/mine"}):
        body = pod.build(make_run(extras=given), Settings())
        served = body["spec"]["initContainers"][-1]["command"]
        assert served[served.index("--logdir") + 1] == f"/run-data/{extras(body)['tensorboard_dir']}"
        assert "tensorboard" not in config(body)
    without = pod.build(make_run(artifacts={"tensorboard": {"enabled": False}}), Settings())
    assert config(without)["tensorboard"] is False


def test_tensorboard_stays_on_loopback_unless_it_is_to_be_served(make_run: MakeRun) -> None:
    (beside,) = pod.build(make_run(), Settings())["spec"]["initContainers"]
    assert beside["command"][beside["command"].index("--host") + 1] == "127.0.0.1"
    assert "--path_prefix" not in beside["command"]
    refused = pod.build(make_run(**ALWAYS), Settings(tensorboard_always=False))
    assert "--bind_all" not in refused["spec"]["initContainers"][0]["command"]
    (served,) = pod.build(make_run(**ALWAYS), Settings())["spec"]["initContainers"]
    assert "--bind_all" in served["command"]
    assert served["readinessProbe"]["httpGet"]["path"] == "/tb/ns/run/"


def test_sidecar_and_deployment_are_the_same_tensorboard(make_run: MakeRun) -> None:
    run = make_run(**ALWAYS, podTemplate={"nodeSelector": {"disk": "fast"}, "labels": {"team": "a"}})
    (beside,) = pod.build(run, Settings())["spec"]["initContainers"]
    made = tensorboard.deployment(run, Settings())
    (alone,) = made["spec"]["template"]["spec"]["containers"]
    ours, _, told = (" ".join(beside.pop("command"))).partition(" -- ")
    assert told == " ".join(alone.pop("command")[3:])
    read, written = alone.pop("volumeMounts"), beside.pop("volumeMounts")[2:]
    assert {(each["mountPath"], each["subPath"], each.get("readOnly", False)) for each in written} == {
        ("/analytics/run", run.folder, False),
        ("/analytics/runs", "runs", True),
        ("/analytics/index", "index", False),
    }, "the run's own folder and the index are all that it may write to"
    assert all(each["mountPath"] in ours for each in written)
    assert [each.get("readOnly", False) for each in read if each["name"] == "run-data"] == [True]
    assert beside == {**alone, "restartPolicy": "Always", "terminationMessagePolicy": "File"}
    assert made["spec"]["template"]["spec"]["nodeSelector"] == {"disk": "fast"}
    assert made["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    assert made["metadata"]["ownerReferences"][0]["uid"] == run.uid


def test_without_tensorboard_a_small_sidecar_still_finishes_what_a_killed_worker_could_not(make_run: MakeRun) -> None:
    run = make_run(artifacts={"tensorboard": {"enabled": False}})
    (with_board,) = pod.build(make_run(), Settings())["spec"]["initContainers"]
    (without,) = pod.build(run, Settings())["spec"]["initContainers"]
    ours = with_board["command"][: with_board["command"].index("--")]
    assert without["command"] == [*ours, "--without-tensorboard"]
    assert (without["restartPolicy"], without["terminationMessagePolicy"]) == ("Always", "File")
    assert without["resources"]["requests"] == {"cpu": "5m", "memory": "32Mi"}
    written = {each["mountPath"] for each in without["volumeMounts"] if not each.get("readOnly")}
    assert written == {"/tmp", "/analytics/run", "/analytics/index"}
    assert without["securityContext"]["readOnlyRootFilesystem"] is True


def test_torch_takes_as_many_threads_as_the_run_has_cpus_whatever_the_node_has(make_run: MakeRun) -> None:
    made = worker(pod.build(make_run(resources={"cpus": {"requested": "400m"}}), Settings()))
    (threads,) = [each["valueFrom"]["resourceFieldRef"] for each in made["env"] if each["name"] == "OMP_NUM_THREADS"]
    assert (threads["resource"], threads["divisor"]) == ("limits.cpu", "1")
    assert made["resources"]["limits"]["cpu"] == "400m", "which the kubelet rounds up to one thread"


@pytest.mark.parametrize("name", ["a.b.c", "9lives", "x" * 63, "a" * 39 + ".b"])
def test_names_of_services_are_dns_labels(make_run: MakeRun, name: str) -> None:
    import re

    found = tensorboard.name_of(make_run(name))
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", found), found


def test_an_http_route_leads_through_the_gateway_that_is_named(make_run: MakeRun) -> None:
    settings = Settings(tensorboard_route="HTTPRoute", tensorboard_host="b.example", tensorboard_gateway="infra/main")
    run = make_run(**ALWAYS)
    made = tensorboard.route(run, settings)
    assert made is not None
    assert made["spec"]["parentRefs"] == [{"name": "main", "namespace": "infra"}]
    (rule,) = made["spec"]["rules"]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/tb/ns/run"}}]
    assert rule["backendRefs"] == [{"name": tensorboard.name_of(run), "port": 6006}]
    assert tensorboard.url(run, settings) == "https://b.example/tb/ns/run/"
    assert tensorboard.route(run, Settings()) is None
    assert json.dumps(made).count("uid-run") == 2, "owned, and labelled for people"


def test_a_run_may_ask_not_to_be_scraped(make_run: MakeRun) -> None:
    asked = {"prometheus.io/scrape": "false", CONFIG_ANNOTATION: "forged"}
    given = pod.build(make_run(podTemplate={"annotations": asked}), Settings())["metadata"]["annotations"]
    assert given["prometheus.io/scrape"] == "false"
    assert given[CONFIG_ANNOTATION].startswith("sha256:"), "what is the operator's own stays so"
