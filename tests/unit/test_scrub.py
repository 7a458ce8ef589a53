"""Texts from outside hold secrets; a journal holds none."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hicache_obs import wire

SECRET = "hunter2-S3cr3t"

WITH_SECRET = [
    f"cannot connect to redis://default:{SECRET}@db:6379/0",
    f"cannot connect to redis://:{SECRET}@db:6379/0",
    f"HTTPSConnectionPool https://bob:{SECRET}@host/path?x=1 refused",
    f"http://bob:p@{SECRET}@host/",
    f"clone of https://{SECRET}@github.com/a/b failed",
    f"password={SECRET}",
    f"PASSWD: {SECRET}",
    f"db_password = '{SECRET}'",
    f'{{"password": "{SECRET}", "user": "bob"}}',
    f'password="two words {SECRET}"',
    f"HF_TOKEN={SECRET}",
    f"token: {SECRET}",
    f"?access_token={SECRET}&page=2",
    f"X-Api-Key: {SECRET}",
    f"api_key={SECRET}",
    f"AWS_SECRET_ACCESS_KEY={SECRET}",
    f"launch_server --api-key {SECRET} --port 1",
    f"Authorization: Bearer {SECRET}",
    f"Authorization: Basic {SECRET}",
    f"authorization: token {SECRET}",
    f"{{'Authorization': 'Bearer {SECRET}'}}",
    f'{{"Authorization": "Basic {SECRET}"}}',
]


@pytest.mark.parametrize("text", WITH_SECRET)
def test_takes_the_secret_out(text: str) -> None:
    assert SECRET not in wire.scrub(text)
    assert "***" in wire.scrub(text)


@given(st.sampled_from(WITH_SECRET[:1] + WITH_SECRET[5:6]), st.integers(0, 2100), st.integers(0, 9))
@example(WITH_SECRET[0], 2000 - 50, 9)
@example(WITH_SECRET[0], 480, 0)
def test_no_padding_uncovers_a_secret(text: str, before: int, behind: int) -> None:
    assert SECRET[:8] not in wire.scrub("x" * before + " " + text + " y" * behind)


@pytest.mark.parametrize("shown", range(30, 50, 5))
def test_a_long_secret_before_does_not_uncover_the_next(shown: int) -> None:
    first = "token=" + "a" * 1900
    rest = 4 * wire.MAX_TEXT - len(first) - shown
    text = first + " " * rest + f"redis://default:{SECRET * 9}@db"
    assert SECRET[:8] not in wire.scrub(text)


@pytest.mark.parametrize(
    "text",
    [
        "Not enough host memory available. Requesting 7.05 GB but only have 2.04 GB free.",
        "Failed to register buffer to Mooncake Store, error code: -1",
        "cudaHostRegister failed (rc=1, invalid argument) at offset=0 size=34760392704",
        "http://10.0.0.1:8080/get_all_segments timed out",
        "mail to ops@example.org",
        "max_total_num_tokens=20480 is more than the pool holds",
    ],
)
def test_leaves_an_ordinary_text(text: str) -> None:
    assert wire.scrub(text) == text


@given(st.text(max_size=3000))
def test_is_never_longer_than_the_limit(text: str) -> None:
    assert len(wire.scrub(text)) <= wire.MAX_TEXT


@pytest.mark.parametrize("word", ["token.", "secret-", "a.", "://", "x"])
def test_no_text_takes_long(word: str) -> None:
    text = (word * 1000)[:1100]
    started = time.perf_counter()
    wire.scrub(text)
    assert time.perf_counter() - started < 0.15
