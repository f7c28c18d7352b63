import pytest

from trieye.config import PersistenceConfig
from trieye.config.mirror import check_mirror_url


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("gs://bucket", "gs://bucket"),
        ("file:///backup/my runs", "file:///backup/my runs"),
        ("abfs://container@account.dfs/prefix", "abfs://container@account.dfs/prefix"),
    ],
)
def test_an_address_is_taken_without_its_last_slash(url, found):
    assert check_mirror_url(url) == found
    assert PersistenceConfig(mirror=url).mirror == found


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("/backup", "begins with its scheme, as in s3://bucket/prefix"),
        ("gcss://bucket", "'gcss' is no scheme of a mirror; did you mean 'gcs'"),
        ("s3://key:secret@bucket/x", "credentials do not belong here"),
        ("file://backup/runs", "has to be absolute"),
        ("s3://", "names no place"),
        ("file:///", "names no place"),
        ("s3://bucket/../other", "names no place"),
        ("s3://bucket/a::file:///b", "names no place"),
    ],
)
def test_what_cannot_be_a_mirror_is_refused_by_the_config(url, complaint):
    with pytest.raises(ValueError, match=complaint):
        PersistenceConfig(mirror=url)


@pytest.mark.parametrize(
    ("key", "url"), [("mirror", "s3://key:s3cret@bucket/x"), ("mlflow_tracking_uri", "htp://ann:s3cret@host")]
)
def test_the_message_about_a_refused_address_holds_no_password(key, url):
    with pytest.raises(ValueError, match=key) as caught:
        PersistenceConfig(**{key: url})
    assert "s3cret" not in str(caught.value)
    assert ":***@" in str(caught.value)


def test_there_is_no_mirror_by_default_and_none_for_an_empty_text():
    assert PersistenceConfig().mirror is None
    assert PersistenceConfig(mirror="").mirror is None
