from trieye.hub.actor import TrieyeActor
from trieye.hub.ledger import Ledger
from trieye.hub.logic import ActorLogic
from trieye.hub.requests import requests_of
from trieye.hub.status import HubStatus
from trieye.hub.tracking import Tracking


def test_each_request_is_one_of_one_part_and_a_method_of_the_actor():
    names = [{method.__name__ for method, _ in requests_of(part)} for part in (ActorLogic, Ledger, Tracking, HubStatus)]
    assert sum(map(len, names)) == len(set.union(*names))
    assert set.union(*names) <= set(dir(TrieyeActor.__ray_metadata__.modified_class))
