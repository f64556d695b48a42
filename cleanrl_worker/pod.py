"""The worker's entry point in a pod: read the config that came in the pod's annotation, then be the worker.

`CLEANRL_POD_CONFIG` names the file that the downward API made of the annotation. What is in it is checked by its digest, the
worker's part is laid down as a config file, the gateway's authority as a PEM file, and the ordinary command line takes over.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from cleanrl_protocol.podconfig import BadPodConfig, decode
from cleanrl_worker import cli


def main() -> int:
    """Start the worker as the pod's config says. A config that can't be used is exit code 2."""
    source = os.environ.get("CLEANRL_POD_CONFIG", "")
    try:
        config = decode(Path(source).read_text())
    except OSError as error:
        sys.stderr.write(f"cleanrl_worker.pod: CLEANRL_POD_CONFIG ({source or 'not set'}): {error.strerror}\n")
        return 2
    except BadPodConfig as error:
        sys.stderr.write(f"cleanrl_worker.pod: {error}\n")
        return 2
    folder = Path(tempfile.mkdtemp(prefix="cleanrl-pod-"))
    (folder / "worker.json").write_text(json.dumps(config.worker_config))
    arguments = ["--config", str(folder / "worker.json"), "--run-id", config.run_id]
    if config.gateway_target is not None:
        if config.gateway_ca:
            (folder / "gateway-ca.pem").write_text(config.ca_bundle())
            os.environ["CLEANRL_GATEWAY_CA"] = str(folder / "gateway-ca.pem")
        arguments += ["--grpc", "--grpc-target", config.gateway_target]
    if run_dir := os.environ.get("CLEANRL_RUN_DIR"):
        arguments += ["--run-dir", run_dir]
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
