import pytest

import trieye
from trieye.compat.actor_logic import ActorLogic
from trieye.hub.actor import RemoteHub
from trieye.hub.ledger import Ledger
from trieye.hub.logic import HubLogic
from trieye.hub.requests import requests_of
from trieye.hub.status import HubStatus
from trieye.hub.tracking import Tracking

ACTORS = pytest.mark.parametrize(("actor", "logic"), [(RemoteHub, HubLogic), (trieye.TrieyeActor, ActorLogic)])


def parts(logic):
    return logic, Ledger, Tracking, HubStatus


@ACTORS
def test_each_request_belongs_to_one_part_and_is_a_method_of_the_actor(actor, logic):
    names = [{method.__name__ for method, _ in requests_of(part)} for part in parts(logic)]
    assert sum(map(len, names)) == len(set.union(*names))
    assert set.union(*names) <= set(dir(actor.__ray_metadata__.modified_class))


@ACTORS
def test_ray_runs_requests_in_their_concurrency_groups_and_converts_arguments(actor, logic):
    meta = actor.__ray_metadata__.method_meta
    groups = {method.__name__: group for part in parts(logic) for method, group in requests_of(part) if group}
    assert groups.items() <= meta.concurrency_group_for_methods.items()
    plainly = {"log_event", "log_batch_events", "save_training_state"} if logic is ActorLogic else set()
    assert set(meta.decorators) == plainly
