"""What CoreDNS is told, as text; that it understands it is seen on a real node."""

from __future__ import annotations

from pathlib import Path

import pytest

from devcluster.dns import Dns, usable_resolvers


def test_the_clusters_names_come_from_the_api_server_and_are_not_cached():
    text = Dns(Path("/some where/dns.kubeconfig"), ["10.0.0.1", "10.0.0.2"], "10.0.0.1:8181").corefile()
    assert text.startswith("cluster.local:53 in-addr.arpa:53 ip6.arpa:53 {")
    assert '        kubeconfig "/some where/dns.kubeconfig"\n' in text
    assert "    bind 10.0.0.1 10.0.0.2\n" in text
    assert "    ready 10.0.0.1:8181\n" in text
    assert "cache" not in text
    assert "forward" not in text
    assert text.count("{") == text.count("}")


def test_other_names_go_to_the_resolvers_that_are_named():
    text = Dns(Path("/k"), ["10.0.0.1"], "10.0.0.1:8181", port=1053, forward_to=["192.0.2.1", "192.0.2.2"]).corefile()
    assert ".:1053 {" in text
    assert "    forward . 192.0.2.1 192.0.2.2\n" in text


@pytest.mark.parametrize(
    ("content", "servers"),
    [
        ("nameserver 192.0.2.1\n", ["192.0.2.1"]),
        (
            "# nameserver 192.0.2.9\nsearch a\nnameserver 127.0.0.53\nnameserver ::1\nnameserver 192.0.2.2\n",
            ["192.0.2.2"],
        ),
        ("nameserver\n", []),
        ("", []),
    ],
)
def test_resolvers_on_loopback_are_of_no_use_to_a_node_with_a_network_of_its_own(tmp_path, content, servers):
    file = tmp_path / "resolv.conf"
    file.write_text(content)
    assert usable_resolvers(file) == servers


def test_a_machine_without_a_resolv_conf_has_no_resolvers(tmp_path):
    assert usable_resolvers(tmp_path / "absent") == []
