#include "rules.h"

#define AS_TEXT(rule, name, configuration, text) [rule] = {name, configuration, text},
const struct rule_text rule_texts[RULE_COUNT] = {RULES(AS_TEXT)};

bool rules_broken[RULE_COUNT];
