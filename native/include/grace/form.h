// A form of component has three parts: the rules of ads, what users ask, and the test of both.
#pragma once

#include "grace/component.h"
#include "grace/rule_form.h"
#include "grace/user_form.h"

namespace grace::forms {

using namespace exact;
using namespace rules;
using namespace users;
using wire::Entry;
using wire::Field;
using wire::Wrong;

}  // namespace grace::forms
