"""The channel: whole messages, descriptors that no exec inherits, a dead peer that is an error."""

from __future__ import annotations

import os
import resource

import pytest

from ringfeed.system import channel as channels


@pytest.mark.usefixtures("nothing_left")
def test_a_message_arrives_whole_with_its_descriptors() -> None:
    """What is sent is received, one message at a time, and descriptors refer to the same file."""
    ours, theirs = channels.pair()
    read, write = os.pipe()
    with ours, theirs:
        channels.send(ours, {"a": 1}, (write,))
        channels.send(ours, "b" * 100_000)
        message, fds = channels.receive(theirs)
        assert message == {"a": 1}
        os.write(fds[0].fileno(), b"x")
        assert os.read(read, 9) == b"x"
        assert not os.get_inheritable(fds[0].fileno())
        assert channels.receive(theirs) == ("b" * 100_000, [])
    for fd in (read, write):
        os.close(fd)
    del fds  # which closes them


def test_a_long_message_is_its_users_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memfd in which it travels can be opened by no other user."""
    modes: list[int] = []
    monkeypatch.setattr(
        "ringfeed.system._system.send",
        lambda _end, _packet, fds: modes.append(os.fstat(fds[0]).st_mode & 0o777),
    )
    ours, theirs = channels.pair()
    with ours, theirs:
        channels.send(ours, "b" * 100_000)
    assert modes == [0o600]


def test_the_last_words_of_a_peer_that_never_listened() -> None:
    """What a peer has sent arrives also if it ended without having read what was sent to it."""
    ours, theirs = channels.pair()
    with ours:
        with theirs:
            channels.send(ours, "hello")
            channels.send(theirs, "I cannot")
        assert channels.receive(ours) == ("I cannot", [])
        with pytest.raises(EOFError):
            channels.receive(ours)


def test_descriptors_without_room() -> None:
    """A message whose descriptors find no room is an error, and those that did are closed again."""
    ours, theirs = channels.pair()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    with ours, theirs:
        channels.send(ours, 1, (0, 0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
        try:
            with pytest.raises(OSError, match="Errno 24") as caught:
                channels.receive(theirs)
            os.close(os.dup(0))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert str(caught.value) == "[Errno 24] no room for the descriptors of a message"


def test_a_dead_peer_is_an_error() -> None:
    """Receiving from a closed peer is EOFError, sending to it an OSError."""
    ours, theirs = channels.pair()
    theirs.close()
    with ours:
        with pytest.raises(EOFError):
            channels.receive(ours)
        with pytest.raises(OSError, match="Broken pipe"):
            channels.send(ours, 1)


def test_a_peer_that_does_not_read_never_blocks_us() -> None:
    """A full channel is a BlockingIOError at once."""
    ours, theirs = channels.pair()

    def fill() -> None:
        for _ in range(10_000):
            channels.send(ours, "x" * 1000)

    with ours, theirs, pytest.raises(BlockingIOError):
        fill()
