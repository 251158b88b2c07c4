"""The connection of this process to a Ray cluster, and in words what is wrong where there is none."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import time
from typing import Any

import ray

from ringfeed.errors import WorkerError
from ringfeed.ray.options import LOCAL

CONNECT_S = 10.0  # for a head to answer


def connect(address: str) -> None:
    """Connect this process to a cluster; WorkerError says what to do where that fails."""
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False, "namespace": None}
    if address == LOCAL:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray writes one to the home of this user
        ray.init(address=LOCAL, include_dashboard=False, **quiet)
        return
    _wait_for(address)
    try:
        ray.init(address=address, **quiet)
    except RuntimeError as error:
        raise WorkerError(_differs(address, error)) from error
    except OSError as error:  # ConnectionError, too
        text = _asks_for_token(address) if _is_about_token(error) else _nothing_at(address, str(error))
        raise WorkerError(text) from error


def _wait_for(address: str) -> None:
    """Wait until a head answers at an address; WorkerError where none does."""
    host, _, port = address.rpartition(":")
    deadline_s = time.monotonic() + CONNECT_S
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=1.0):
                return
        except (OSError, ValueError) as error:
            if time.monotonic() > deadline_s or isinstance(error, ValueError):
                raise WorkerError(_nothing_at(address, str(error))) from error
            time.sleep(0.2)


def _nothing_at(address: str, why: str) -> str:
    return (
        f"no Ray cluster answers at {address!r} within {CONNECT_S:g} s ({why}); `ray status --address {address}` says "
        f"whether one runs there; start one by `ray start --head`, or give address='local'"
    )


def _is_about_token(error: BaseException | None) -> bool:
    """Whether a cluster has refused what led to this for want of its token."""
    while error is not None:
        if "AuthToken" in str(error) or type(error).__name__ == "AuthenticationError":
            return True
        error = error.__cause__ or error.__context__
    return False


def _asks_for_token(address: str) -> str:
    mode = os.environ.get("RAY_AUTH_MODE", "disabled")
    return (
        f"the Ray cluster at {address!r} asks for a token, and RAY_AUTH_MODE is {mode!r} here; have training run with "
        f"RAY_AUTH_MODE=token and the token of that cluster, as Ray's page on token authentication says"
    )


def _differs(address: str, error: RuntimeError) -> str:
    here = f"Ray {ray.__version__}, Python {sys.version.split()[0]}"
    told = " ".join(str(error).split())
    return f"the Ray cluster at {address!r} cannot be joined: here is {here}; {told}"
