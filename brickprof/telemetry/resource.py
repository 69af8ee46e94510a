"""Which process a span comes from, in OpenTelemetry's words.

Enters: a run's meta, and the ``run`` event of a rank (its host and process). Leaves: one ``Resource`` per
process. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over what brickprof would say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brickprof.records import RunMeta
from brickprof.text import clean

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

SERVICE = "brickprof"


def resource(meta: RunMeta, process: dict[str, Any] | None = None) -> Resource:
    """The resource of one process of the run: ``process`` holds the fields of its ``run`` event."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    from brickprof.telemetry.delivery import quiet

    fields = process or {}
    ours: dict[str, str | int] = {"service.name": SERVICE, **_sdk()}
    host = fields.get("host") or meta.host
    if host:
        ours["host.name"] = clean(host)
    pid = fields.get("pid", meta.extra.get("pid"))
    if isinstance(pid, int):
        ours["process.pid"] = pid
    if fields.get("python"):
        ours["process.runtime.name"] = "cpython"
        ours["process.runtime.version"] = clean(fields["python"])
    with quiet():
        asked = OTELResourceDetector().detect()
    return Resource(ours).merge(asked).merge(Resource({"brickprof.run.id": clean(meta.run_id)}))


def _sdk() -> dict[str, str | int]:
    from opentelemetry.sdk.version import __version__

    return {
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "opentelemetry",
        "telemetry.sdk.version": __version__,
    }
