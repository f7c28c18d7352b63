"""Secrets are recognized, redacted and restored from the environment."""

import json
import os
import threading
import time
from typing import Any

import pytest

from trieye.config import PersistenceConfig, TrieyeConfig
from trieye.config.base import StrictModel
from trieye.config.fingerprint import config_hash, differences, json_of, parameters
from trieye.config.redaction import looks_secret, recorded, redacted, redacted_text, redacted_yaml, with_secrets
from trieye.exceptions import ConfigurationError


class World(StrictModel):
    kwargs: dict[str, Any] = {}
    wrappers: dict[str, Any] = {}
    num: int = 1


class WorldConfig(TrieyeConfig):
    env: World = World()


class Game(StrictModel):
    login: str = "nobody"
    password: str | None = None


class GameConfig(TrieyeConfig):
    env: Game = Game()


NAMES = (
    "password db.password DB_PASSWORD dbPassword passwd pwd token GH_TOKEN accessToken auth_token secret client_secret "
    "api_key apikey openaiApiKey access_key AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID private_key credential "
    "credentials.aws.login X-Amz-Credential"
)
OTHERS = (
    "tokenizer key keys monkey num_tokens token_dim token.dim max_token_length pad_token eos_token secretary compass "
    "password_length hotkey sort_key access"
)


@pytest.mark.parametrize("name", NAMES.split())
def test_a_name_that_ends_with_a_secret_word_is_secret(name):
    assert looks_secret(name)


@pytest.mark.parametrize("name", OTHERS.split())
def test_a_name_that_merely_contains_a_secret_word_is_not_secret(name):
    assert not looks_secret(name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://ann:s3cret@host:8/x?y=1", "https://ann:***@host:8/x?y=1"),
        ("postgresql://ann:p@ss@host/db", "postgresql://ann:***@host/db"),
        ("postgresql://ann:p/ss@host/db", "postgresql://ann:***@host/db"),
        ("https://ghp_0123456789abcdefghij@github.com/x", "https://***@github.com/x"),
        ("https://b/x?X-Amz-Signature=ab&y=1&token=ff", "https://b/x?X-Amz-Signature=***&y=1&token=***"),
        ("https://b/x?token=12&accessToken=3&sig=0.1", "https://b/x?token=***&accessToken=***&sig=***"),
        ("Endpoint=x;SharedAccessSignature=sv=1&sig=ab", "Endpoint=x;SharedAccessSignature=***&sig=***"),
        (f"sig={'aB3%2F' * 7}&se=1 Signature={'0f' * 32}", "sig=***&se=1 Signature=***"),
        (f"f(sig='{'aB3/' * 7}') {{'x-amz-signature': '{'0f' * 32}'}}", "f(sig=***) {'x-amz-signature': ***}"),
        ("token=1,a x_token=3b api_token=abc api_key=12", "token=*** x_token=*** api_token=*** api_key=***"),
        ("Endpoint=x;AccountKey=aa==;y", "Endpoint=x;AccountKey=***;y"),
        ("db.password=abc,seed=1 failed", "db.password=***,seed=1 failed"),
        ("token=a,b:c,seed=1,2", "token=***,seed=1,2"),
        ("agent.dbPassword=abc hfToken=abcd maxtoken=9", "agent.dbPassword=*** hfToken=*** maxtoken=9"),
        ("{'password': 'a b', 'token': 3}", "{'password': ***, 'token': 3}"),
        ("Service(api_key=b'a b') {'token': b'a'}", "Service(api_key=***) {'token': ***}"),
        ("+db={user: ann, api_key: a b#c}", "+db={user: ann, api_key: ***}"),
        ("db={a: {b\\ token: 'x, y', lr: 1}}", "db={a: {b\\ token: ***, lr: 1}}"),
        ("db={passwords: [a,b]},{credentials: {a: {b: c}}}", "db={passwords: ***},{credentials: ***}"),
        (
            "x=shuffle(choice( {pwd: a b},{a: 'x\ny', api_key: s}))",
            "x=shuffle(choice( {pwd: ***},{a: 'x\ny', api_key: ***}))",
        ),
        ("x={api_key: 'x''y z', n: 1}", "x={api_key: ***, n: 1}"),
    ],
)
def test_secrets_in_a_text_are_redacted(text, shown):
    assert redacted_text(text) == shown
    assert redacted_text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "http://localhost:5000",
        "http://host:80/a@b",
        "abfs://container-of-many-letters@account/x",
        "sqlite:////a b/mlflow.db",
        "sig=0.1 time_signature=3,4 apiSignature=a",
        "num_token=128,token=-1e-3,256,x=1: token=3",
        "m.patch_token=tag(log, interval(1, 2.5))",
        "token=choice(1,2) token=range(1,9) use_token=true,null",
        "{token: 3, pad_token: a, api_key: null, pwd: ''}",
        "{a: ${oc.env:X}, pwd: ${oc.env:PW,x}, b: 1}",
        "x={pwd: },{n_token: -0.5, a: 'token: b'}",
        "def f(a={}, token: str = None, b=[], password: str)",
        'post(u, json={"x": 1, "token": t})',
        "step 3, token: 12.5k, pwd: /home",
        "{\n  user: a,\n  credentials: {\n    b: c\n  }\n}",
        "db.pwd: unknown key; did you mean pw?",
        "http://ann:${oc.env:PW}@host?token=${oc.env:T}",
    ],
)
def test_a_text_without_secrets_is_unchanged(text):
    assert redacted_text(text) == text


def test_secrets_in_recorded_overrides_are_redacted_like_those_in_the_config():
    overrides = ["sig=0.1", "+num_token=range(1,9)", "token=1,2", "token=1,a", "api_key=12", "api_token=abc"]
    assert redacted(overrides) == [*overrides[:3], "token=***", "api_key=***", "api_token=***"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pwd: abc # d\nlr: 1\ndb:\n  pwd: a b\n  pwd:\n", "pwd: *** # d\nlr: 1\ndb:\n  pwd: ***\n  pwd:\n"),
        ("@@ -1 +1 @@ pwd: a\n+  token: a b\n-token: 3", "@@ -1 +1 @@ pwd: ***\n+  ***\n-token: 3"),
        (
            "+'api_key': a\n+db: {pwd: a, b: 1}\n+use_secret: yes",
            "+'api_key': ***\n+db: {pwd: ***, b: 1}\n+use_secret: yes",
        ),
        ("#password: 'it''s a b' # c\nid-token: write", "#password: *** # c\nid-token: write"),
        ('credentials: {user: "}", pin: a}', "credentials: ***"),
        ("+db: {pwd:\n+  a}", "+db: {pwd:\n+  a}"),  # a patch must keep its lines
        ("ssh_key: |\n  ab\n\n  cd\nlr: 1", "ssh_key: ***\n  ***\n\n  ***\nlr: 1"),
        (
            " a:\n-  x: 1\n+  token: >-  # new\n+    ab\n   lr: 1",
            " a:\n-  x: 1\n+  token: ***  # new\n+    ***\n   lr: 1",
        ),
        ("db:\n  passwords:\n  - ab\n  - cd\nlr: 1", "db:\n  passwords:\n  ***\n  ***\nlr: 1"),
        ("+credentials:\n+  aws: {id: 1}\n+lr: 1", "+credentials:\n+  ***\n+lr: 1"),
        ("+credentials:\n+  aws: ${oc.env:ID}\n@@ -1 +1 @@\n   b: 1", "+credentials:\n+  ***\n@@ -1 +1 @@\n   b: 1"),
        ("token:\n  dim: 4", "token:\n  dim: 4"),
        (
            " pwd: |\n-  ab\n-a: 1\n+  cd\n+b: 1",
            " pwd: ***\n-  ***\n-a: 1\n+  ***\n+b: 1",
        ),  # each side has its own block
        ("-passwords:\n+pins:\n   ann: ab", "-passwords:\n+pins:\n   ***"),
        ("+  passwords:\n+  # of ann\n+# of bob\n+  - ab", "+  passwords:\n+  # of ann\n+# of bob\n+  ***"),
        ("+pwd: ab\n+\n+  cd\n+lr: 1", "+pwd: ***\n+\n+  ***\n+lr: 1"),
        ("+pwd: !!str |\n+  ab\n+lr: 1", "+pwd: ***\n+  ***\n+lr: 1"),
        ("+passwords: [ab,\n+  cd]\n+lr: 1", "+passwords: ***\n+  ***\n+lr: 1"),
        ("+pwd: |\r\n+  ab\r\n+lr: 1\r", "+pwd: ***\r\n+  ***\r\n+lr: 1\r"),
        ("+- pwd: |\n+    ab\n+  host: a\n+- b", "+- pwd: ***\n+    ***\n+  host: a\n+- b"),
    ],
)
def test_secrets_in_yaml_are_redacted(text, shown):
    assert redacted_yaml(text) == shown


@pytest.mark.parametrize(
    "text", ["-" * 50_000 + " token", "x={a, token: x" + " " * 16_000 + "y, b", "1" * 50_000 + " token"]
)
def test_long_texts_are_redacted_in_linear_time(text):
    started = time.perf_counter()
    redacted_yaml(text)
    redacted_text(text)
    assert time.perf_counter() - started < 3  # a quadratic pattern takes longer


def test_the_value_of_a_secret_variable_is_redacted_under_any_key(monkeypatch, tmp_path):
    monkeypatch.setenv("GAME_TOKEN", "s3cret")
    monkeypatch.setenv("OTHER_TOKEN", "ab1c")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path))
    values = {"note": "Bearer s3cret", "list": ["s3cret", 3], "short": "ab1c", "path": str(tmp_path), "word": "s3crets"}
    shown = {**values, "note": "Bearer ***", "list": ["***", 3], "short": "***"}
    assert redacted(values) == shown
    assert redacted_text("it said: s3cret!") == "it said: ***!"


def test_texts_are_redacted_while_another_thread_changes_the_environment(monkeypatch):
    monkeypatch.setenv("GAME_TOKEN", "s3cret")
    is_done = threading.Event()

    def change():
        while not is_done.is_set():
            os.environ["TRIEYE_TEST_CHANGING"] = "on"
            del os.environ["TRIEYE_TEST_CHANGING"]

    changing = threading.Thread(target=change)
    changing.start()
    try:
        assert {redacted_text("it said: s3cret!") for _ in range(2000)} == {"it said: ***!"}
    finally:
        is_done.set()
        changing.join()


def test_values_that_are_not_secret_are_unchanged():
    values = {
        "token": 50256,
        "is_secret": True,
        "password": None,
        "api_key": "",
        "tokens": "a b",
        "prompt": "\n- token: a b\nAnswer as {thought: text, token: one word}",
    }
    assert redacted(values) == values
    assert redacted({"passwords": ["a", "b"], "token": ["a"]}) == {"passwords": ["***", "***"], "token": ["***"]}
    assert redacted({"password": 12345678, "api_key": "${oc.env:KEY,none}"}) == {
        "password": "***",
        "api_key": "${oc.env:KEY,none}",
    }


def test_recorded_configs_restore_their_secrets_from_the_environment(monkeypatch):
    monkeypatch.setenv("GAME_TOKEN", "s3cret")
    monkeypatch.setenv("GAME_URL", "http://ann:pw1234@host")
    values = {
        "env": {"login": "s3cret", "header": "Bearer s3cret", "url": "http://ann:pw1234@host", "password": "pw99"}
    }
    redacted_values = recorded(values)
    assert redacted_values["env"] == {
        "login": "***",
        "header": "Bearer ***",
        "url": "http://ann:***@host",
        "password": "***",
    }
    assert recorded(redacted_values) == redacted_values
    assert parameters(redacted_values).keys() == {f"env.{name}" for name in values["env"]}
    with pytest.raises(ConfigurationError, match=r"env\.password is a secret.*variable TRIEYE_SECRET_ENV_PASSWORD"):
        with_secrets(redacted_values)
    monkeypatch.setenv("TRIEYE_SECRET_ENV_PASSWORD", "pw99")
    assert with_secrets(json.loads(json.dumps(redacted_values))) == values
    monkeypatch.delenv("GAME_TOKEN")
    with pytest.raises(ConfigurationError, match=r"env\.login is a secret.*variable GAME_TOKEN"):
        with_secrets(redacted_values)


def test_a_redacted_tracking_uri_takes_the_password_of_the_same_server_only(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ann:s3cret@host:1")
    dump = redacted(PersistenceConfig().model_dump(mode="json"))
    assert dump["MLFLOW_TRACKING_URI"] == "http://ann:***@host:1"
    for dumped in (dump, {"mlflow_tracking_uri": "http://ann:***@host:1"}):
        assert PersistenceConfig(**dumped).MLFLOW_TRACKING_URI == "http://ann:s3cret@host:1"
    other = PersistenceConfig(mlflow_tracking_uri="http://ann:***@elsewhere")
    assert other.MLFLOW_TRACKING_URI == "http://ann:***@elsewhere"


def test_changes_name_added_and_removed_keys(tmp_path):
    def changes(before, now):
        configs = [WorldConfig(run_name="same", env=World(**env)) for env in (before, now)]
        (earlier := tmp_path / "configs.json").write_text(json.dumps(recorded(configs[0].model_dump(mode="json"))))
        return differences(json_of(earlier), configs[1])

    wrapper = {"time": {"name": "TimeAwareObservation"}}
    assert changes({}, {"kwargs": {"g": 1.0}}) == ["env.kwargs.g: not set -> 1.0"]
    assert changes({"kwargs": {"g": 1.0}}, {}) == ["env.kwargs.g: 1.0 -> not set"]
    assert changes({"kwargs": {"g": 1.0}}, {"kwargs": {"g": 10.0}}) == ["env.kwargs.g: 1.0 -> 10.0"]
    assert changes({}, {"wrappers": wrapper}) == ["env.wrappers.time: not set -> {'name': 'TimeAwareObservation'}"]
    assert changes({"wrappers": wrapper}, {"wrappers": wrapper}) == []
    assert changes({"num": 1}, {"num": 2}) == ["env.num: 1 -> 2"]


def test_a_default_missing_in_a_stored_config_is_not_a_change(tmp_path):
    config = WorldConfig()
    stored = config.model_dump(mode="json")
    del stored["tune"], stored["env"]["wrappers"], stored["replay"]["n_step"], stored["loop"]
    (earlier := tmp_path / "configs.json").write_text(json.dumps(stored))
    assert differences(json_of(earlier), config) == []


def test_secrets_affect_neither_the_config_hash_nor_the_reported_changes(tmp_path):
    configs = [
        GameConfig(run_name="same", env=Game(password=password), tags={"token": "t"})
        for password in ("one", "two", "***")
    ]

    def hash_of(config):
        return config_hash(type(config), recorded(config.model_dump(mode="json")))

    assert len({hash_of(config) for config in configs}) == 1
    assert hash_of(GameConfig(env=Game(login="ann"))) != hash_of(configs[0])
    earlier = tmp_path / "configs.json"
    for stored in (configs[0].model_dump(mode="json"), recorded(configs[0].model_dump(mode="json"))):
        earlier.write_text(json.dumps(stored))
        assert differences(json_of(earlier), configs[1]) == []
