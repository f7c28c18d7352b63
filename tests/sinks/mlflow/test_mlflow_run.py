"""Members of a sweep and their parent run."""

import dataclasses

import pytest
from mlflow import MlflowClient
from mlflow.entities import ViewType

from trieye.sinks.mlflow.run import PARENT_TAG, RUN_ID_TAG, SWEEP_PARENT_TAG, SWEEP_TAG, sweep_name, sweep_parent
from trieye.sinks.mlflow.sink import MlflowSink

GROUP = "/data/app/multirun/2026-11-21/07-41-45"


@pytest.fixture
def run(run_with_store):
    return dataclasses.replace(run_with_store, group=GROUP)


@pytest.fixture
def client(run):
    return MlflowClient(tracking_uri=run.tracking_uri)


@pytest.fixture
def experiment_id(client):
    return client.create_experiment("app")


def member(run, number, **changes):
    sink = MlflowSink()
    sink.open(dataclasses.replace(run, run_name=str(number), run_id=f"member-{number}", **changes))
    return sink


def parents(client, view=ViewType.ACTIVE_ONLY):
    experiment = client.get_experiment_by_name("app")
    parent_runs = client.search_runs([experiment.experiment_id], f"tags.`{SWEEP_PARENT_TAG}` = 'true'", view)
    return {run.info.run_id: run for run in parent_runs}


def test_members_of_a_sweep_share_a_parent_run(run, client):
    alone = member(run, 0, group=None)
    assert PARENT_TAG not in client.get_run(alone.run_id).data.tags
    assert parents(client) == {}
    sinks = [member(run, number) for number in (1, 2)]
    ((parent_id, parent),) = parents(client).items()
    assert parent.info.run_name == "2026-11-21/07-41-45"
    assert [parent.data.tags.get(tag) for tag in (SWEEP_TAG, RUN_ID_TAG, PARENT_TAG)] == [GROUP, None, None]
    for number, sink in enumerate(sinks, 1):
        tags = client.get_run(sink.run_id).data.tags
        assert (tags[PARENT_TAG], tags[SWEEP_TAG], tags[RUN_ID_TAG]) == (parent_id, GROUP, f"member-{number}")
        assert SWEEP_PARENT_TAG not in tags


@pytest.mark.long
def test_every_sweep_has_its_own_parent(run, client):
    # SQL's LIKE would confuse some of these
    groups = [GROUP, GROUP + "/", "/Data/app/multirun/2026-11-21/07-41-45", '/it\'s "x"', "/it_s", "%"]
    first, later = (
        {
            group: client.get_run(member(run, number, group=group).run_id).data.tags[PARENT_TAG]
            for number, group in enumerate(groups, first_number)
        }
        for first_number in (0, 100)
    )
    assert first == later
    assert {run_id: parent.data.tags[SWEEP_TAG] for run_id, parent in parents(client).items()} == {
        run_id: group for group, run_id in first.items()
    }


def test_a_sweep_is_named_by_the_last_parts_of_its_directory():
    names = {GROUP: "2026-11-21/07-41-45", "/sweep": "sweep", "sweep": "sweep", "/": "/", "a/b/c/": "b/c"}
    assert {group: sweep_name(group) for group in names} == names


def test_the_parent_is_running_while_any_member_is(run, client):
    first = member(run, 1)
    ((parent_id, parent),) = parents(client).items()
    statuses = [parent.info.status]
    for number, status in ((1, "FAILED"), (2, "RUNNING"), (2, "KILLED")):
        (first if number == 1 else member(run, number)).close(status)
        statuses.append(client.get_run(parent_id).info.status)
    assert statuses == ["RUNNING", "FINISHED", "RUNNING", "FINISHED"]
    assert client.get_run(first.run_id).info.status == "FAILED"


def test_a_restarted_member_continues_its_run_and_is_no_parent(run, client):
    first = member(run, 1)
    first.close("FINISHED")
    restarted = member(run, 1)
    assert restarted.run_id == first.run_id
    assert restarted.run_id not in parents(client)
    assert len(parents(client)) == 1


def test_a_deleted_parent_is_replaced_and_stops_no_member(run, client):
    first = member(run, 1)
    (deleted,) = parents(client)
    client.delete_run(deleted)
    first.close("FINISHED")
    assert client.get_run(first.run_id).info.status == "FINISHED"
    restarted = member(run, 1)
    (new,) = parents(client)
    assert new != deleted
    assert client.get_run(restarted.run_id).data.tags[PARENT_TAG] == new


def test_the_oldest_of_several_parents_is_used(client, experiment_id):
    tags = {SWEEP_TAG: GROUP, SWEEP_PARENT_TAG: "true"}
    younger, older = (client.create_run(experiment_id, start_time=at, tags=tags).info.run_id for at in (2000, 1000))
    assert sweep_parent(client, experiment_id, GROUP) == older
    assert set(parents(client)) == {younger, older}


class LateClient:
    """A client whose first search came before the other process created the parent."""

    def __init__(self, client):
        self._client = client
        self._has_searched = False

    def __getattr__(self, name):
        return getattr(self._client, name)

    def search_runs(self, *arguments):
        has_searched, self._has_searched = self._has_searched, True
        return self._client.search_runs(*arguments) if has_searched else []


def test_the_loser_of_a_creation_race_deletes_its_own_parent(client, experiment_id):
    winner = sweep_parent(client, experiment_id, GROUP)
    assert sweep_parent(LateClient(client), experiment_id, GROUP) == winner
    assert set(parents(client)) == {winner}
    assert len(parents(client, ViewType.ALL)) == 2
