"""Build a snapshot from an ads table: streamed, on all cores, with reproducible bytes."""

from grace.index.builder.build import RunTasks, Sharding, build
from grace.index.builder.plan import BuildSpec
from grace.index.builder.report import BuildReport
from grace.index.builder.sharding.tasks import Task
