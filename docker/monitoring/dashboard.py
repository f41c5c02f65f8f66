"""Write dashboard.json, the Grafana dashboard, from the table of panels below.

    python docker/monitoring/dashboard.py docker/monitoring/dashboard.json      `make fix` does

Import the file into Grafana 10.1 or newer, or put it into a folder that Grafana's provisioning
names. Every query uses the chosen data source, job and replicas (Prometheus' `instance`).
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models

SOURCE = models.DataSourceRef("prometheus", "${datasource}")
KEPT = '{job=~"$job",instance=~"$instance"}'
RATE = f"{KEPT}[$__rate_interval]"


@dataclass(frozen=True)
class Query:
    """An expression and the name of its series, in which {{label}} stands for a label's value."""

    expr: str
    name: str


@dataclass(frozen=True)
class Panel:
    """A graph, or with `stat` the latest value as a number.

    unit     Grafana's name of the unit, such as s, reqps or percentunit
    stacked  the series add up to a whole
    none     what to show while there is no series
    """

    title: str
    means: str
    unit: str
    queries: Sequence[Query]
    width: int = 8
    stacked: bool = False
    stat: bool = False
    most: float | None = None
    none: str = ""


def rate(metric: str, by: str = "", of: str = "") -> str:
    """Return the expression of a counter's rate, in sum or by labels; `of` are more matchers."""
    kept = RATE if not of else RATE.replace("}", f",{of}}}")
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{kept}))"


def quantile(share: float, metric: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share:g}, {rate(f'{metric}_bucket', labels)})"


def mean(metric: str, by: str = "") -> str:
    return f"{rate(f'{metric}_sum', by)} / {rate(f'{metric}_count', by)}"


def quantiles(metric: str, *shares: float) -> list[Query]:
    return [Query(quantile(share, metric), f"P{share * 100:g}") for share in shares]


def by_replica(metric: str, name: str = "{{instance}}") -> Query:
    return Query(f"{metric}{KEPT}", name)


ANSWERED = rate("grace_requests_total", of='code="OK"')

CALLERS = [
    Panel("Replicas that serve", "Servers whose health says SERVING.", "none",
          [Query(f"sum (grace_ready{KEPT})", "serve")], 4, stat=True),
    Panel("Calls", "Calls that ended, however they ended.", "reqps",
          [Query(rate("grace_requests_total"), "calls")], 4, stat=True),
    Panel("Answered", "Share of calls that ended with OK.", "percentunit",
          [Query(f"{ANSWERED} / {rate('grace_requests_total')}", "OK")], 4, stat=True),
    Panel("P99", "P99 of the time from call to reply, for calls that ended with OK.", "s",
          [Query(quantile(0.99, "grace_request_duration_seconds"), "P99")], 4, stat=True),
    Panel("Index version", "The newest version that a replica serves.", "none",
          [Query(f"max (grace_snapshot_version{KEPT})", "version")], 4, stat=True),
    Panel("Index age", "The age of the oldest index that a replica serves.", "s",
          [Query(f"max (grace_snapshot_age_seconds{KEPT})", "age")], 4, stat=True),
    Panel("Calls by status", "Every call that reached the service ends with one status.", "reqps",
          [Query(rate("grace_requests_total", "code") + " > 0", "{{code}}")], stacked=True),
    Panel("Latency", "Time from call to reply in the server, for OK calls.", "s",
          quantiles("grace_request_duration_seconds", 0.5, 0.99, 0.999)),
    Panel("Failures by reason", "docs/api.md has every reason.", "reqps",
          [Query(rate("grace_request_failures_total", "reason") + " > 0", "{{reason}}")],
          stacked=True, none="no failures"),
    Panel("Shed", "Requests refused or displaced for lack of room in the queue, by priority. LOW "
          "ones are shed first.", "reqps",
          [Query(rate("grace_shed_total", "priority"), "{{priority}}")], stacked=True),
    Panel("Time left at the reply", "Time from the reply to the caller's deadline, for calls "
          "that ended with OK and had a deadline.", "s",
          quantiles("grace_deadline_slack_seconds", 0.01, 0.1, 0.5)),
    Panel("Calls and requests under way", "Open: the reply has not been sent completely. In "
          "flight: taken, and not ended.", "none",
          [Query(f"sum (grace_open_calls{KEPT})", "open"),
           Query(f"sum (grace_inflight_requests{KEPT})", "in flight")]),
]  # fmt: skip

STAGES = [
    Panel("Where a request's time goes", "Mean seconds in the queue and in each stage.", "s",
          [Query(mean("grace_queue_duration_seconds"), "queue"),
           Query(mean("grace_stage_duration_seconds", "stage"), "{{stage}}")], stacked=True),
    Panel("P99 by stage", "P99 of a stage's time for a batch, and of the wait in the queue.", "s",
          [Query(quantile(0.99, "grace_queue_duration_seconds"), "queue"),
           Query(quantile(0.99, "grace_stage_duration_seconds", "stage"), "{{stage}}")]),
    Panel("Busy", "Share of the time that each stage works, mean of the replicas. The stage near "
          "100 % is the limit.", "percentunit",
          [Query(f"avg by (stage) (rate(grace_stage_duration_seconds_sum{RATE}))", "{{stage}}")],
          most=1),
    Panel("Queue", "Requests that wait for a batch.", "none", [by_replica("grace_queue_depth")]),
    Panel("Requests in a batch", "Batches become larger under load.", "none",
          [Query(mean("grace_batch_size"), "mean"),
           Query(quantile(0.9, "grace_batch_size"), "P90")]),
    Panel("Degraded and margin", "Share of answers from a smaller beam profile, and what admission "
          "adds to its predictions because answers came late.", "percentunit",
          [Query(f"{rate('grace_degraded_total')} / {ANSWERED}", "degraded"),
           Query(f"max (grace_admission_margin{KEPT})", "margin")]),
]  # fmt: skip

ELIGIBILITY = [
    Panel("Ads in a reply", "A low P10 means that some users get few ads.", "none",
          [Query(mean("grace_ads_per_request"), "mean"),
           *quantiles("grace_ads_per_request", 0.1, 0.5)]),
    Panel("Pass rate", "Share of a request's generated ads that pass targeting.", "percentunit",
          [Query(mean("grace_ad_pass_rate"), "mean"), *quantiles("grace_ad_pass_rate", 0.1, 0.5)],
          most=1),
    Panel("SIDs wasted", "Share of the generated SIDs with no ad that passes targeting. In mode "
          "exact it is 0.", "percentunit",
          [Query(f"{rate('grace_sids_wasted_total')} / {rate('grace_sids_generated_total')}",
                 "wasted")]),
    Panel("Ads left out, by test", "Generated ads that are not in the reply, by the first test "
          "that they failed; limited: matched ads that at_most left out.", "cps",
          [Query(rate("grace_ads_filtered_total", "by") + " > 0", "{{by}}")], 12, stacked=True),
    Panel("Ads", "Ads of the generated SIDs, and ads in replies.", "cps",
          [Query(rate("grace_ads_generated_total"), "generated"),
           Query(rate("grace_ads_returned_total"), "returned")], 12),
]  # fmt: skip

INDEX = [
    Panel("Version by replica", "Replicas differ for minutes after each publish.", "none",
          [by_replica("grace_snapshot_version")]),
    Panel("Age by replica", "Time since the served index was built.", "s",
          [by_replica("grace_snapshot_age_seconds")]),
    Panel("Loads", "Loads of a snapshot or a checkpoint in the last hour, by result.", "none",
          [Query(f"sum by (result) (increase(grace_snapshot_load_total{KEPT}[1h]))",
                 "{{result}}")]),
    Panel("Stops: last update by replica", "Sequence number of the last update of ads in force. "
          "Replicas should agree.", "none", [by_replica("grace_update_seq")]),
    Panel("Updates of ads", "By result.", "cps",
          [Query(rate("grace_updates_total", "result"), "{{result}}")]),
    Panel("Stopped ads and pins", "Ads of the served index that are stopped; pinned: replicas "
          "that a rollback holds.", "none",
          [Query(f"max (grace_stopped_ads{KEPT})", "stopped ads"),
           Query(f"sum (grace_pinned{KEPT})", "pinned")]),
]  # fmt: skip

PROCESS = [
    Panel("Event loop lag", "Worst delay of the event loop in the last seconds.", "s",
          [by_replica("grace_event_loop_lag_seconds")]),
    Panel("Processor", "Cores in use, without relays.", "none",
          [Query(f"rate(process_cpu_seconds_total{RATE})", "{{instance}}")]),
    Panel("Memory", "Resident, without relays. It doubles during a load.", "bytes",
          [by_replica("process_resident_memory_bytes")]),
    Panel("GPU memory", "What tensors hold.", "bytes", [by_replica("grace_gpu_memory_bytes")], 6,
          none="no GPU"),
    Panel("Descriptors", "Share of the limit that is open. Each connection takes one.",
          "percentunit",
          [Query(f"process_open_fds{KEPT} / process_max_fds{KEPT}", "{{instance}}")], 6),
    Panel("Replies unread and files refused", "Calls reset because their callers did not read the "
          "reply, and changed certificates that the server could not use.", "cps",
          [Query(rate("grace_replies_unread_total"), "unread"),
           Query(rate("grace_credentials_load_total", of='result="failed"'), "refused")], 12),
]  # fmt: skip

ROWS = {
    "What callers see": CALLERS,
    "Queue and stages": STAGES,
    "Eligibility": ELIGIBILITY,
    "Index and stops": INDEX,
    "Process and GPU": PROCESS,
}


def targets_of(panel: Panel) -> list[prometheus.Dataquery]:
    return [
        prometheus.Dataquery()
        .datasource(SOURCE)
        .expr(query.expr)
        .legend_format(query.name)
        .ref_id(chr(ord("A") + place))
        for place, query in enumerate(panel.queries)
    ]


def stat_of(panel: Panel) -> stat.Panel:
    drawn = stat.Panel().height(4).graph_mode(common_models.BigValueGraphMode.AREA)
    drawn.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    for target in targets_of(panel):
        drawn.with_target(target)
    return drawn


def graph_of(panel: Panel) -> timeseries.Panel:
    legend = (
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(common_models.LegendDisplayMode.LIST)
        .placement(common_models.LegendPlacement.BOTTOM)
        .calcs([])
    )
    tooltip = common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI)
    drawn = timeseries.Panel().height(8).min(0).legend(legend).tooltip(tooltip)
    drawn.show_points(common_models.VisibilityMode.NEVER).line_width(1)
    drawn.fill_opacity(40 if panel.stacked else 8)
    if panel.stacked:
        drawn.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    if panel.most is not None:
        drawn.max(panel.most)
    for target in targets_of(panel):
        drawn.with_target(target)
    return drawn


def variables() -> list[dashboard.DatasourceVariable | dashboard.QueryVariable]:
    def labels(name: str, label: str, query: str) -> dashboard.QueryVariable:
        everything = models.VariableOption(True, "All", "$__all")
        return (
            dashboard.QueryVariable(name)
            .label(label)
            .datasource(SOURCE)
            .query(query)
            .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(models.VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".*")
            .current(everything)
        )

    return [
        dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"),
        labels("job", "Job", "label_values(grace_ready, job)"),
        labels("instance", "Replica", 'label_values(grace_ready{job=~"$job"}, instance)'),
    ]


def the_dashboard() -> dashboard.Dashboard:
    made = dashboard.Dashboard("GRACE").uid("grace-serving").tags(["grace"])
    made.description("Generative ads retrieval: callers, stages, eligibility, index, process.")
    made.refresh("30s").time("now-1h", "now").timezone("browser").readonly()
    made.tooltip(models.DashboardCursorSync.CROSSHAIR)
    for variable in variables():
        made.with_variable(variable)
    number = 0
    for title, panels in ROWS.items():
        made.with_row(dashboard.Row(title).id(number := number + 1))
        for panel in panels:
            drawn = stat_of(panel) if panel.stat else graph_of(panel)
            drawn.id(number := number + 1).title(panel.title).description(panel.means)
            drawn.datasource(SOURCE).unit(panel.unit).span(panel.width)
            made.with_panel(drawn.no_value(panel.none) if panel.none else drawn)
    return made


if __name__ == "__main__":
    text = json.dumps(the_dashboard().build(), cls=JSONEncoder, indent=2, ensure_ascii=False)
    for name in sys.argv[1:]:
        Path(name).write_text(f"{text}\n", encoding="utf-8")
