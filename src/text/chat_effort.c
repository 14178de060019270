#include "text/chat_effort.h"

#include <stdbool.h>
#include <string.h>

#include "base/memory.h"
#include "text/jinja_lexer.h"

const char *const chat_effort_names[CHAT_N_EFFORTS] = {"xhigh", "medium", "low"};

enum { MAX_DEPTH = 64, MAX_VARIABLES = 16, ALL_EFFORTS = (1 << CHAT_N_EFFORTS) - 1 };

/* For which efforts the statements at hand are run, thinking being on. */
typedef struct branch {
    unsigned efforts; /* bit per chat_effort_t */
    bool unclear;     /* behind a condition that is not understood */
} branch_t;

/* An open if (or for, which has an else as well). */
typedef struct chain {
    branch_t outside;
    unsigned taken; /* efforts of the branches so far, which later ones do not see */
    bool undecided; /* a condition so far was about something else */
    bool unclear;
} chain_t;

/* A variable that the template sets on its way. */
typedef struct variable {
    jinja_token_t name;
    const char *statement; /* a dictionary: where it is assigned in the template */
    bool off;              /* a condition: it holds when thinking is off, rather than when it is on */
} variable_t;

typedef struct reader {
    const char *where;
    jinja_statement_t statement;
    branch_t branch;
    chain_t chains[MAX_DEPTH];
    size_t n_chains;
    variable_t dictionaries[MAX_VARIABLES], conditions[MAX_VARIABLES];
    size_t n_dictionaries, n_conditions;
    char **sentences;
} reader_t;

static status_t not_understood(const reader_t *reader, const char *what) {
    const jinja_token_t *first = &reader->statement.tokens[0];
    return status_fail(
        STATUS_INPUT,
        "%s: %s in \"%.60s\" is not understood; render the prompt elsewhere and give it with --prompt-file",
        reader->where, what, first->start);
}

/* The effort that a string literal names, CHAT_N_EFFORTS if none. */
static chat_effort_t named_effort(const jinja_statement_t *statement, size_t i) {
    int effort = CHAT_N_EFFORTS;
    if (jinja_is_string(statement, i)) {
        const jinja_token_t *token = &statement->tokens[i];
        for (effort = 0; effort < CHAT_N_EFFORTS; ++effort)
            if (token->bytes == strlen(chat_effort_names[effort]) &&
                memcmp(token->start, chat_effort_names[effort], token->bytes) == 0)
                break;
    }
    return (chat_effort_t)effort;
}

static bool same_name(const jinja_token_t *a, const jinja_token_t *b) {
    return a->bytes == b->bytes && memcmp(a->start, b->start, a->bytes) == 0;
}

/* Whether token `i` is enable_thinking or a variable that was set from it. If so, `*off` tells whether the expression
 * around it holds when thinking is off: "not enable_thinking", "enable_thinking is false". */
static bool asks_for_thinking(const reader_t *reader, size_t i, bool *off) {
    const jinja_statement_t *s = &reader->statement;
    bool inverted = false, found = jinja_is(s, i, "enable_thinking");
    for (size_t k = reader->n_conditions; k-- > 0 && !found;) {
        found = s->tokens[i].kind == JINJA_NAME && same_name(&reader->conditions[k].name, &s->tokens[i]);
        inverted = reader->conditions[k].off;
    }
    bool compares = jinja_is(s, i + 1, "is") || jinja_is(s, i + 1, "==");
    bool denied =
        jinja_is(s, i - 1, "not") || (compares && (jinja_is(s, i + 2, "false") || jinja_is(s, i + 2, "False")));
    if (found) *off = denied != inverted;
    return found;
}

/* Reads the condition of an if or elif. `*decides` tells whether it is about effort or thinking; others are taken to
 * hold. */
static branch_t read_condition(const reader_t *reader, bool *decides) {
    const jinja_statement_t *s = &reader->statement;
    unsigned named = 0;
    bool equal = false, unequal = false, negated = false, thinking = false, off = false;
    for (size_t i = 1; i < s->n; ++i) {
        chat_effort_t effort = named_effort(s, i);
        if (effort != CHAT_N_EFFORTS) named |= 1u << effort;
        bool asks_for_off;
        if (asks_for_thinking(reader, i, &asks_for_off)) {
            thinking = true;
            off = off || asks_for_off;
        }
        bool not_before = jinja_is(s, i - 1, "not");
        equal = equal || jinja_is(s, i, "==") || (jinja_is(s, i, "in") && !not_before);
        unequal = unequal || jinja_is(s, i, "!=") || (jinja_is(s, i, "in") && not_before);
        negated = negated || (jinja_is(s, i, "not") && !jinja_is(s, i - 1, "is") && !jinja_is(s, i + 1, "in"));
    }
    *decides = named || thinking;
    if (named)
        return (branch_t){.efforts = unequal ? ALL_EFFORTS & ~named : named,
                          .unclear = equal == unequal || negated || off};
    return (branch_t){.efforts = off ? 0 : ALL_EFFORTS};
}

/* Enters the branch of an if, elif or else. */
static void enter_branch(reader_t *reader, chain_t *chain, bool has_condition) {
    branch_t condition = {.efforts = ALL_EFFORTS};
    bool decides = true;
    unsigned taken = chain->taken;
    if (chain->undecided) chain->unclear = true; /* taken to hold before, so this one would not run */
    if (has_condition) {
        condition = read_condition(reader, &decides);
        if (decides) chain->taken |= condition.efforts;
        chain->undecided = chain->undecided || !decides;
    }
    chain->unclear = chain->unclear || condition.unclear;
    reader->branch.efforts = chain->outside.efforts & condition.efforts & ~taken;
    reader->branch.unclear = chain->outside.unclear || chain->unclear;
}

/* Follows if, elif, else, endif, for and endfor. `*is_flow` tells whether the statement was one of them. */
static status_t follow_flow(reader_t *reader, bool *is_flow) {
    const jinja_statement_t *s = &reader->statement;
    chain_t *chain = reader->n_chains ? &reader->chains[reader->n_chains - 1] : NULL;
    bool opens_if = jinja_is(s, 0, "if"), opens_for = jinja_is(s, 0, "for");
    bool continues = jinja_is(s, 0, "elif") || jinja_is(s, 0, "else");
    bool closes = jinja_is(s, 0, "endif") || jinja_is(s, 0, "endfor");
    *is_flow = opens_if || opens_for || continues || closes;
    if (opens_if || opens_for) {
        if (reader->n_chains == MAX_DEPTH) return not_understood(reader, "the nesting");
        chain = &reader->chains[reader->n_chains++];
        *chain = (chain_t){.outside = reader->branch};
        if (opens_if) enter_branch(reader, chain, true);
        /* What is set inside a loop does not last. */
        if (opens_for) reader->branch.unclear = chain->unclear = true;
        return STATUS_OK;
    }
    if (!*is_flow) return STATUS_OK;
    if (!chain) return not_understood(reader, "the nesting");
    if (continues) enter_branch(reader, chain, jinja_is(s, 0, "elif"));
    if (closes) {
        reader->branch = chain->outside;
        --reader->n_chains;
    }
    return STATUS_OK;
}

/* Reads the string literals at token `*i`, joined with ~ or + or by standing side by side, and sets them as the
 * sentence of `efforts`. */
static status_t assign_literal(reader_t *reader, size_t *i, unsigned efforts) {
    const jinja_statement_t *s = &reader->statement;
    size_t end = *i, room = 1;
    while (jinja_is_string(s, end)) {
        room += s->tokens[end++].bytes;
        if ((jinja_is(s, end, "~") || jinja_is(s, end, "+")) && jinja_is_string(s, end + 1)) ++end;
    }
    for (int effort = 0; effort < CHAT_N_EFFORTS; ++effort) {
        if (!(efforts & 1u << effort)) continue;
        void *memory;
        TRY(memory_alloc(MEMORY_OTHER, room, 1, &memory));
        memory_free(reader->sentences[effort]);
        reader->sentences[effort] = memory;
        size_t n = 0;
        for (size_t k = *i; k < end; ++k)
            if (jinja_is_string(s, k) && !jinja_append_string(&s->tokens[k], memory, &n))
                return not_understood(reader, "an escape");
    }
    *i = end;
    return STATUS_OK;
}

/* Sets the sentences from the dictionary that begins at token `*i`; efforts that it lacks get the empty one. */
static status_t assign_dictionary(reader_t *reader, size_t *i, unsigned efforts) {
    const jinja_statement_t *s = &reader->statement;
    for (int effort = 0; effort < CHAT_N_EFFORTS; ++effort) {
        if (!(efforts & 1u << effort)) continue;
        memory_free(reader->sentences[effort]);
        reader->sentences[effort] = NULL;
    }
    size_t k = *i + 1;
    while (!jinja_is(s, k, "}")) {
        chat_effort_t effort = named_effort(s, k);
        if (effort == CHAT_N_EFFORTS || !jinja_is(s, k + 1, ":") || !jinja_is_string(s, k + 2))
            return not_understood(reader, "the dictionary");
        k += 2;
        TRY(assign_literal(reader, &k, efforts & 1u << effort));
        if (jinja_is(s, k, ",")) ++k;
    }
    *i = k + 1;
    return STATUS_OK;
}

/* Whether what begins at token `i` picks the entry of the effort from a dictionary, and nothing follows: [effort],
 * [effort | default('xhigh')], .get(effort), .get(effort, ''), or ['low'] where the effort is known to be low. */
static bool is_lookup(const jinja_statement_t *s, size_t i, unsigned efforts) {
    bool by_get = jinja_is(s, i, ".") && jinja_is(s, i + 1, "get") && jinja_is(s, i + 2, "(");
    if (!by_get && !jinja_is(s, i, "[")) return false;
    if (!jinja_is(s, s->n - 1, by_get ? ")" : "]")) return false;
    size_t key = by_get ? i + 3 : i + 1;
    for (size_t k = key; k < s->n; ++k) {
        if (!jinja_is_string(s, k) || s->tokens[k].bytes == 0) continue;
        chat_effort_t effort = named_effort(s, k);
        if (effort == CHAT_N_EFFORTS || (k == key && efforts != 1u << effort)) return false;
    }
    return true;
}

/* Remembers `set NAME = {`, for a lookup further down, and `set NAME = ... enable_thinking ...`, for a condition. */
static status_t remember_variable(reader_t *reader, const char *statement) {
    const jinja_statement_t *s = &reader->statement;
    if (!jinja_is(s, 2, "=") || jinja_is(s, 1, "enable_thinking")) return STATUS_OK;
    variable_t variable = {.name = s->tokens[1], .statement = statement};
    bool is_dictionary = jinja_is(s, 3, "{"), is_condition = false;
    for (size_t i = 3; i < s->n; ++i) {
        bool off;
        if (!asks_for_thinking(reader, i, &off)) continue;
        is_condition = true;
        variable.off = variable.off || off;
    }
    size_t *n = is_dictionary ? &reader->n_dictionaries : &reader->n_conditions;
    if (!is_dictionary && !is_condition) return STATUS_OK;
    if (*n == MAX_VARIABLES) return not_understood(reader, "one variable more");
    (is_dictionary ? reader->dictionaries : reader->conditions)[(*n)++] = variable;
    return STATUS_OK;
}

/* Sets the sentences from the remembered dictionary with the name of `token`, the latest if there are several. The
 * statement at hand is overwritten. */
static status_t assign_remembered(reader_t *reader, const jinja_token_t *token, bool *found) {
    *found = false;
    for (size_t i = reader->n_dictionaries; i-- > 0 && !*found;) {
        if (!same_name(&reader->dictionaries[i].name, token)) continue;
        const char *next = reader->dictionaries[i].statement;
        TRY(jinja_next_statement(&next, reader->where, &reader->statement, found));
        size_t brace = 3;
        TRY(assign_dictionary(reader, &brace, reader->branch.efforts));
    }
    return STATUS_OK;
}

/* Follows `set`. `statement` is where it stands in the template. */
static status_t follow_set(reader_t *reader, const char *statement) {
    const jinja_statement_t *s = &reader->statement;
    size_t equal = 1;
    while (equal < s->n && !jinja_is(s, equal, "="))
        ++equal;
    if (!jinja_is(s, equal - 1, "reasoning_instructions")) return remember_variable(reader, statement);
    if (reader->branch.efforts == 0) return STATUS_OK;
    if (reader->branch.unclear) return not_understood(reader, "a condition around the assignment");

    size_t i = equal + 1;
    if (jinja_is_string(s, i)) {
        TRY(assign_literal(reader, &i, reader->branch.efforts));
        if (i == s->n) return STATUS_OK;
    } else if (jinja_is(s, i, "{")) {
        TRY(assign_dictionary(reader, &i, reader->branch.efforts));
        if (is_lookup(s, i, reader->branch.efforts)) return STATUS_OK;
    } else if (i < s->n && s->tokens[i].kind == JINJA_NAME && is_lookup(s, i + 1, reader->branch.efforts)) {
        bool found;
        TRY(assign_remembered(reader, &s->tokens[i], &found));
        if (found) return STATUS_OK;
    }
    return not_understood(reader, "the assignment");
}

status_t chat_effort_read(const char *text, const char *where, char *sentences[CHAT_N_EFFORTS]) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(reader_t), &memory));
    reader_t *reader = memory;
    reader->where = where;
    reader->branch.efforts = ALL_EFFORTS;
    reader->sentences = sentences;
    for (int effort = 0; effort < CHAT_N_EFFORTS; ++effort)
        sentences[effort] = NULL;

    status_t status = STATUS_OK;
    for (;;) {
        const char *statement = text;
        bool found, is_flow;
        TRY_GOTO(jinja_next_statement(&text, where, &reader->statement, &found), end);
        if (!found) break;
        TRY_GOTO(follow_flow(reader, &is_flow), end);
        if (!is_flow && jinja_is(&reader->statement, 0, "set")) TRY_GOTO(follow_set(reader, statement), end);
    }
end:
    memory_free(reader);
    return status;
}
