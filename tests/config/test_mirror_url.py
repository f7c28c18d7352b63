import pytest

from trieye.config import PersistenceConfig


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("gs://bucket", "gs://bucket"),
        ("file:///backup//runs", "file:///backup//runs"),
        ("file:///backup/my runs", "file:///backup/my runs"),
        ("abfs://container@account.dfs/prefix", "abfs://container@account.dfs/prefix"),
        ("", None),
        (None, None),
    ],
)
def test_a_mirror_url_loses_its_trailing_slash(url, expected):
    assert PersistenceConfig(mirror=url).mirror == expected


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("/backup", "a mirror URL needs a scheme, as in s3://bucket/prefix"),
        ("gcss://bucket", "unknown scheme 'gcss' of a mirror URL; did you mean 'gcs'"),
        ("s3://key:secret@bucket/x", "must not contain credentials"),
        ("file://backup/runs", "must be absolute"),
        ("s3://", "invalid path"),
        ("file:///", "invalid path"),
        ("s3://bucket/../other", "invalid path"),
        ("s3://bucket//prefix", "empty name in the path"),
        ("s3://bucket/a::file:///b", "invalid path"),
    ],
)
def test_an_invalid_mirror_url_is_rejected(url, complaint):
    with pytest.raises(ValueError, match=complaint):
        PersistenceConfig(mirror=url)
