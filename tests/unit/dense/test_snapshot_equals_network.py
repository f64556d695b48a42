"""A snapshot predicts what its network predicted when it was taken."""

from __future__ import annotations

import numpy as np
import pytest

from cleanrl_worker.training.dense import Net
from cleanrl_worker.training.snapshot import Snapshot


@pytest.fixture
def net() -> Net:
    rng = np.random.default_rng(3)
    net = Net(5, (32, 16), heads=(3,), activation="relu", layer_norm=True)
    net.init_orthogonal(rng, head_gains=(1.0,))
    net.flat += rng.normal(0.0, 0.3, net.flat.shape).astype(np.float32)  # gains and shifts other than one and zero
    return net


def test_it_predicts_what_the_network_predicts(net: Net) -> None:
    snapshot = Snapshot(net, rows=4)
    for seed in range(5):
        x = np.random.default_rng(seed).normal(size=(4, 5)).astype(np.float32)
        np.testing.assert_allclose(snapshot.predict(x), net.predict(x)[0], rtol=2e-5, atol=2e-5)


def test_later_updates_do_not_change_it(net: Net) -> None:
    x = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    snapshot = Snapshot(net, rows=4)
    before = snapshot.predict(x).copy()
    net.flat *= 2.0
    np.testing.assert_array_equal(snapshot.predict(x), before)


def test_a_network_without_layer_norm_is_refused() -> None:
    with pytest.raises(ValueError, match="LayerNorm"):
        Snapshot(Net(5, (8,), heads=(3,), activation="relu"), rows=4)
