"""The config in a pod's annotation arrives whole or not at all, and holds no secret."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from cleanrl_protocol.podconfig import MAX_BYTES, BadPodConfig, PodConfig, decode, digest_of, encode

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"
CONFIG = PodConfig(
    run_id="01JD0000000000000000000000",
    attempt=2,
    worker_config={"algo": "ppo", "extras": {"algo_params": {"learning_rate": 1e-3}, "notes": "é"}},
    gateway_target="gateway.cleanrl.svc:8443",
    gateway_ca=[CERTIFICATE, CERTIFICATE],
)


def test_what_was_encoded_is_decoded() -> None:
    text = encode(CONFIG)
    assert decode(text) == CONFIG
    assert decode(text).ca_bundle() == f"{CERTIFICATE}\n{CERTIFICATE}\n"
    assert digest_of(text) == hashlib.sha256(text.partition("\n")[2].encode()).hexdigest()


def test_the_same_config_is_the_same_text() -> None:
    again = PodConfig.model_validate(json.loads(encode(CONFIG).partition("\n")[2]))
    assert encode(again) == encode(CONFIG)


@settings(deadline=None)
@given(st.data())
def test_any_cut_or_change_is_noticed(data: st.DataObject) -> None:
    text = encode(CONFIG)
    position = data.draw(st.integers(0, len(text) - 1))
    changed = data.draw(
        st.sampled_from([text[:position], text[:position] + "\x01" + text[position + 1 :], text[position + 1 :]])
    )
    with pytest.raises(BadPodConfig):
        decode(changed)


def _signed(body: str) -> str:
    return f"sha256:{hashlib.sha256(body.encode()).hexdigest()}\n{body}"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("{}", "runId"),
        ('{"runId":"../x"}', "runId"),
        ('{"runId":"r","attempt":0}', "attempt"),
        ('{"runId":"r","version":2}', "version"),
        ('{"runId":"r","gatewayTarget":"dns:///evil"}', "gatewayTarget"),
        ('{"runId":"r","gatewayCa":["no"]}', "gatewayCa"),
        ('{"runId":"r","workerConfig":{"extras":[{"wandb_api_key":"k"}]}}', "wandb_api_key"),
        ("[" * 90_000, "not JSON"),
        ("[]", "not one of ours"),
    ],
)
def test_a_signed_config_that_makes_no_sense_is_refused_by_name(body: str, sentence: str) -> None:
    with pytest.raises(BadPodConfig, match=sentence):
        decode(_signed(body))


def test_secrets_are_refused_before_they_travel() -> None:
    with pytest.raises(ValidationError, match="give the pod a Secret") as caught:
        PodConfig(run_id="r", worker_config={"extras": {"wandb_api_key": "0123456789abcdef"}})
    assert "0123456789abcdef" not in str(caught.value)


def test_a_config_that_does_not_fit_is_refused_with_its_size() -> None:
    with pytest.raises(BadPodConfig, match=str(MAX_BYTES)):
        encode(PodConfig(run_id="r", worker_config={"notes": "x" * MAX_BYTES}))
    with pytest.raises(BadPodConfig, match="longer"):
        decode("x" * (MAX_BYTES + 1))
