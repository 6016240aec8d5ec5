"""Removes all there is of a lease, in an order in which nothing new can come: names, requests, machines, the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from airflow_llmsched.clouds.aws.client import AwsClient, AwsError
from airflow_llmsched.clouds.aws.render import resource_name
from airflow_llmsched.clouds.aws.seen import Seen
from airflow_llmsched.clouds.aws.states import Reaction
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import LeftoverError

log = logging.getLogger(__name__)

_DELETE_TEMPLATE = EffectPoint("aws.template.delete")
_CANCEL_REQUEST = EffectPoint("aws.spot_request.cancel")
_TERMINATE = EffectPoint("aws.instances.terminate")
_DELETE_VOLUME = EffectPoint("aws.volume.delete")
_DELETE_INTERFACE = EffectPoint("aws.interface.delete")
_DELETE_GROUP = EffectPoint("aws.placement_group.delete")

POLL_S = 5.0
GROUP_LIMIT_S = 300.0
"""How long a release waits for its instances to end, so that their placement group can go, too."""

Look = Callable[[str, str], Seen | None]
"""Returns what is listed in a region under a key's name."""
Failures = dict[str, AwsError]


def remove(
    client: AwsClient,
    look: Look,
    *,
    region: str,
    key_name: str,
    consistency_s: float,
    came: Collection[str] = (),
    is_whole: bool = False,
) -> None:
    """Remove a lease. ``came`` are instances known from EC2's answer, listed or not.

    A lease whose nodes are not all listed is looked at until it can not grow any more, unless it ``is_whole``: then
    nothing will come but ``came``. Raises ``LeftoverError`` naming what could not be removed,
    ``CouldNotLookError``.
    """
    name, clock = resource_name(key_name), client.clock
    failures: Failures = {}
    began_at_s = clock.now_s()
    was_there = _delete_template(client, region, name, failures)
    unlisted = set(came)
    while True:
        seen = look(region, key_name)
        unlisted = _end(client, region, seen, unlisted, failures)
        was_there = was_there or (seen is not None and seen.is_left)
        is_short = seen is None or len(seen.lease.nodes) < seen.lease.num_nodes
        may_grow = was_there and is_short and not is_whole
        # A fleet may have been created until its template was deleted, which was just now.
        is_over = clock.now_s() >= began_at_s + consistency_s
        if failures or is_over or not (may_grow or unlisted):
            break
        clock.sleep(POLL_S)
    _raise_for(look, region, key_name, failures, unlisted)
    if was_there:
        _delete_group(client, region, name)


def _raise_for(look: Look, region: str, key_name: str, failures: Failures, unlisted: Collection[str]) -> None:
    """Raise ``LeftoverError`` for what could not be removed, unless it has gone meanwhile."""
    left = set(unlisted)
    if failures:
        seen = look(region, key_name)
        still = {*seen.costly, *seen.template_names} if seen is not None else set()
        left |= still & set(failures)
    if left:
        why = next((str(failures[each]) for each in sorted(left) if each in failures), "they are not listed")
        raise LeftoverError(f"AWS did not remove what lease {region}/{key_name} holds ({why})", ids=sorted(left))


def _end(client: AwsClient, region: str, seen: Seen | None, unlisted: set[str], failures: Failures) -> set[str]:
    """Remove what is listed, and try to terminate what is not. Returns the instances that EC2 does not know yet."""
    if seen is not None:
        for effect, ids in (
            (_cancel_requests, seen.request_ids),
            (_delete_volumes, seen.volume_ids),
            (_delete_interfaces, seen.interface_ids),
        ):
            _try(client, region, effect, ids, failures)
    instances = unlisted.union(seen.instance_ids if seen is not None else ())
    return _try(client, region, _terminate, sorted(instances), failures) & unlisted


Effect = Callable[[AwsClient, str, Sequence[str]], None]


def _try(client: AwsClient, region: str, effect: Effect, ids: Sequence[str], failures: Failures) -> set[str]:
    """Do it to all, or where that is refused to each by itself. Returns the ids that are not there."""
    if not ids:
        return set()
    try:
        effect(client, region, ids)
    except AwsError as error:
        if len(ids) > 1 and error.meant not in (Reaction.AGAIN, Reaction.UNKNOWN):
            return {gone for each in ids for gone in _try(client, region, effect, [each], failures)}
        if error.meant is Reaction.GONE:
            return set(ids)
        failures.update(dict.fromkeys(ids, error))
    return set()


@_CANCEL_REQUEST
def _cancel_requests(client: AwsClient, region: str, ids: Sequence[str]) -> None:
    client.call("cancel_spot_instance_requests", region=region, SpotInstanceRequestIds=list(ids))


@_TERMINATE
def _terminate(client: AwsClient, region: str, ids: Sequence[str]) -> None:
    client.call("terminate_instances", region=region, InstanceIds=list(ids))


@_DELETE_VOLUME
def _delete_volumes(client: AwsClient, region: str, ids: Sequence[str]) -> None:
    for each in ids:
        client.call("delete_volume", region=region, VolumeId=each)


@_DELETE_INTERFACE
def _delete_interfaces(client: AwsClient, region: str, ids: Sequence[str]) -> None:
    for each in ids:
        client.call("delete_network_interface", region=region, NetworkInterfaceId=each)


def _delete_template(client: AwsClient, region: str, name: str, failures: Failures) -> bool:
    """Delete by name, listed or not. Returns whether there was one."""
    with _DELETE_TEMPLATE:
        try:
            client.call("delete_launch_template", region=region, LaunchTemplateName=name)
        except AwsError as error:
            if error.meant is not Reaction.GONE:
                failures[name] = error
                return True
            return False
    return True


def _delete_group(client: AwsClient, region: str, name: str) -> None:
    """Delete by name, once its instances have ended. It costs nothing: one that stays is found again, and no error."""
    give_up_at_s = client.clock.now_s() + GROUP_LIMIT_S
    while True:
        try:
            with _DELETE_GROUP:
                client.call("delete_placement_group", region=region, GroupName=name)
        except AwsError as error:
            if error.meant is Reaction.GONE:
                return
            if error.meant is not Reaction.IN_USE or client.clock.now_s() >= give_up_at_s:
                log.warning("placement group %s is left until its lease is released again: %s", name, error)
                return
        else:
            return
        client.clock.sleep(POLL_S)
