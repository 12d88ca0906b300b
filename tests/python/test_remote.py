# SPDX-License-Identifier: Apache-2.0
"""The remote tier from Python: two engines share a server that the test starts, where one is installed."""

import pathlib
import re
import shutil
import subprocess
import time

import pytest
from byte_engine import DEADLINE_S, WRITE_THROUGH, Engine, config, token_range

import quire

PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "docs" / "remote.md"
PROGRAM = shutil.which("valkey-server") or shutil.which("redis-server")


@pytest.fixture
def server(tmp_path):
    """The url of a server with nothing in it."""
    if PROGRAM is None:
        pytest.skip("neither valkey-server nor redis-server is installed")
    socket = tmp_path / "socket"
    process = subprocess.Popen(
        [PROGRAM, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + DEADLINE_S
    while not socket.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    yield f"unix://{socket}"
    process.kill()
    process.wait()


def on_server(url, **fields):
    host = {**WRITE_THROUGH, "transfer_pages_max": 4}  # and so an extent has four pages
    return Engine(config(16, host=host, remote=quire.RemoteConfig(urls=[url], **fields)))


def test_what_one_engine_computed_another_finds(server):
    tokens = token_range(0, 8 * 16)
    first, second = on_server(server), on_server(server)
    assert first.request(tokens) == 0
    assert first.cache.wait_until_flushed(DEADLINE_S)
    assert first.cache.remote_status().put_values == 2
    sequence = second.cache.begin(second.space, tokens)
    second.cache.admit(sequence)
    assert second.cache.wait_until_ready(sequence, DEADLINE_S)
    view = second.cache.view(sequence)
    assert (view.remote_tokens, view.disk_tokens, view.computed_tokens) == (128, 0, 128)
    second.check(sequence, tokens)
    stats = second.cache.stats()
    assert (stats.remote_hit_tokens, stats.remote_is_on, stats.disk_is_on) == (128, True, False)
    status = second.cache.remote_status()
    assert (status.got_values, status.extent_pages, status.is_usable, status.last_error) == (2, 4, True, "")
    first.cache.close()
    second.cache.close()


def test_a_cache_opens_without_a_server_only_if_it_may(tmp_path):
    url = f"unix://{tmp_path}/nobody"
    with pytest.raises(quire.Error):
        on_server(url)
    engine = on_server(url, is_required=False)
    assert engine.request(token_range(0, 64)) == 0
    assert engine.cache.stats().remote_has_failed and not engine.cache.stats().remote_is_on
    assert engine.cache.remote_status().last_error
    engine.cache.close()


def test_a_password_is_shown_nowhere():
    made = quire.RemoteConfig(urls=["unix:///tmp/a"], password="very secret")
    assert made.password == "very secret"
    assert "secret" not in repr(made) and "password=" in repr(made)
    with pytest.raises(TypeError) as refused:
        made.password = b"very secret"
    assert "secret" not in str(refused.value)


def test_a_key_space_without_a_model_is_refused(server):
    engine = on_server(server)
    with pytest.raises(quire.InvalidArgument, match="KeySpace.model"):
        engine.cache.key_space(quire.KeySpace(salt="tenant"))


# ── errors, and the page for operators ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "fields, named",
    [
        ({"urls": ["redis://127.0.0.1:1"], "user": "me"}, {"user", "password_file", "password"}),
        ({"urls": ["redis://me:secret@127.0.0.1"]}, {"password_file", "password"}),
        ({"urls": ["rediss://127.0.0.1:1"], "ca_file": "/no/such/file"}, {"ca_file"}),
        ({"urls": ["redis://a", "redis://b"], "cluster": quire.RedisCluster.No}, {"urls", "cluster"}),
        ({"urls": ["redis://a"], "ca_file": "some"}, {"urls"}),
    ],
)
def test_errors_name_fields_that_there_are(fields, named):
    with pytest.raises(quire.Error) as refused:
        Engine(config(16, host=WRITE_THROUGH, remote=quire.RemoteConfig(**fields)))
    message = str(refused.value)
    names = set(re.findall(r"remote\.([a-z_]+)", message))
    assert names == named and "::" not in message, message
    assert all(hasattr(quire.RemoteConfig(), name) for name in names)


def table(first_cell):
    """The rows of the table of docs/remote.md whose first line begins so."""
    lines = iter(PAGE.read_text().splitlines())
    next(line for line in lines if line.startswith(f"| {first_cell} |"))
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            return rows
        rows.append([cell.strip() for cell in line.strip("|").split("|")])


def test_the_defaults_of_the_page_are_those_of_the_package():
    meaning = {"100 ms": 100_000_000, "500 ms": 500_000_000, "5 s": 5_000_000_000, "2 MiB": 2 << 20, "true": True}
    remote, host = quire.RemoteConfig(), quire.HostConfig()
    names = []
    for fields, default, _ in table("field"):
        for name in re.findall(r"`([^`]+)`", fields):
            value = getattr(host if name.startswith("host.") else remote, name.removeprefix("host."))
            if default == "none":
                assert not value, name
            elif default.startswith("0"):
                assert value == 0, name
            elif default.startswith("`"):
                assert getattr(value, "name", value) == default.strip("`"), name
            else:
                assert value == (meaning[default] if default in meaning else int(default)), name
            names.append(name)
    assert len(names) == len(set(names)) > 14


@pytest.mark.parametrize("ranks, column", [(1, 2), (8, 3)])
def test_so_many_pages_are_in_a_value_as_the_page_says(ranks, column):
    rows = table("model")
    assert len(rows) > 5
    for row in rows:
        whole = quire.preset(row[0])
        history = next(group for group in whole.groups if group.kind == quire.GroupKind.Full)
        layout = quire.ModelLayout.create("history", [history])
        made = quire.CacheConfig(layout=layout, page=quire.PageOptions(page_tokens=16, rank_count=ranks))
        made.device = quire.DeviceConfig(page_count=4)
        made.host = quire.HostConfig(page_count=4)
        made.remote = quire.RemoteConfig(urls=["unix:///no/such/socket"], is_required=False)
        if ranks > 1:
            made.remote.rank_index = 0
        made.sequence_count_max = 1
        cache = quire.Cache.open(made)
        assert cache.remote_status().extent_pages == int(row[column]), row[0]
        cache.close()
