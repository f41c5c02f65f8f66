"""The predicate of one range or flight: the request's number is within the row's two numbers."""

from dataclasses import dataclass

from torch import Tensor

from grace.kernels.decode.users import UserTensors
from grace.kernels.eligibility.tensors import pack_masks


@dataclass(frozen=True, slots=True)
class IntervalPredicate:
    ids: Tensor  # int32 [rules] each rule's row
    component: int  # the number of the component, and so of what users ask of it
    # float64 [rows, 2]: the lowest number and the highest; infinite where there is none
    table: Tensor
    missing_passes: bool

    def passes(self, users: UserTensors) -> Tensor:
        """Return the mask of each row. A request without a number passes an open row."""
        number, (low, high) = self.numbers(users).unsqueeze(1), self.table.t()
        is_open = (low == -float("inf")) & (high == float("inf"))
        within = (low <= number) & (number <= high)
        return pack_masks(within | number.isnan() & (is_open | self.missing_passes))

    def numbers(self, users: UserTensors) -> Tensor:
        """float64 [B], NaN where a request has no number"""
        numbers: Tensor = users.asked_of(self.component).number
        return numbers
