use serde_json::{Value, json};

use super::*;

fn context() -> Value {
    json!({
        "session": {"owner": "ada", "title": null, "metadata": {"team": "engines", "size": 3}},
        "run": {"mode": "act", "cwd": "/home/ada"},
        "state": {
            "name": "engine <1>",
            "tags": ["b", "A", "c", "A"],
            "people": [
                {"name": "Ada", "age": 36, "langs": ["en", "fr"]},
                {"name": "charles", "age": 79.5, "langs": []},
                {"name": "Bob", "age": 36, "langs": ["en"]},
            ],
            "text": "one\ntwo\n\nthree",
            "on": true,
            "half": 0.5,
        },
    })
}

/// Templates that must render to the same text as in minijinja.
const SAME: &[&str] = &[
    "plain text with { braces } and a newline\n",
    "two newlines\n\n",
    "{{ session.owner }} {{ session.title }} {{ missing.deep.name }}!",
    "a {%- if state.on -%} b {%- endif -%} c {#- comment -#} d",
    "  {{- ' x ' -}}  |",
    "{% raw %}{{ not }} {% evaluated %}{% endraw %} x",
    "{%- raw -%} {{ a }} {%- endraw -%} y",
    "{% if 1 > 2 %}a{% elif state.on and not false %}b{% else %}c{% endif %}",
    "{% for t in state.tags %}{{ loop.index }}/{{ loop.length }}:{{ t }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for t in state.tags %}{{ loop.cycle('x', 'y') }}{{ loop.revindex0 }}{{ loop.changed(t) }}{% endfor %}",
    "{% for k, v in session.metadata|items %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in session.metadata %}{{ k }}{% endfor %}",
    "{% for x in [] %}a{% else %}empty{% endfor %}",
    "{% for x in missing %}a{% else %}empty{% endfor %}",
    "{% for p in state.people if p.age == 36 %}{{ p.name }} {{ loop.length }} {% endfor %}",
    "{% for x in range(3) %}{{ x }}{% for y in range(2, 0, -1) %}{{ y }}{% endfor %}{% endfor %}",
    "{% for x in [[1, [2, 3]], [4]] recursive %}{% if x is sequence %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}",
    "{% for c in 'añb' %}{{ c }}.{% endfor %}",
    "{% set x = 1 %}{% for i in range(3) %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}",
    "{% set ns = namespace(n=0) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d) = (3, 4) %}{{ c }}{{ d }}",
    "{% set block %}x{{ 1 + 1 }}{% endset %}{{ block|upper }}",
    "{% with a=1, b='z' %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% filter upper %}abc {{ session.owner }}{% endfilter %}",
    "{% autoescape true %}{{ state.name }} {{ state.name|safe }} {{ '<'|escape }}{% endautoescape %}{{ state.name }}",
    "{{ state.name|e }}",
    "{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ -2 }}",
    "{{ 1.5 + 1 }} {{ 2.0 }} {{ 1e3 }} {{ 0x1f }} {{ 1_000 }}",
    "{{ 'a' ~ 1 ~ none ~ true }} {{ 'a' + 'b' }} {{ 'ab' * 3 }}",
    "{{ [1, 'a', none, true, 2.5, [\"it's\"]] }} {{ {'b': 1, 'a': [2]} }} {{ (1, 2) }}",
    "{{ [1] + [2, 3] }} {{ [1, 2] * 2 }}",
    "{{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ 1 < 2 < 3 }} {{ 1 != 2 }} {{ [1, 2] == [1, 2] }} {{ 'a' == 1 }}",
    "{{ 'A' in state.tags }} {{ 'z' not in state.tags }} {{ 'ne' in 'one' }} {{ 'team' in session.metadata }}",
    "{{ true and 'x' }} {{ false or 'y' }} {{ not '' }} {{ 'a' if state.on else 'b' }} {{ 'a' if false }}",
    "{{ state.people[0].name }} {{ state.people[-1]['name'] }} {{ state.tags[9] }} {{ 'abc'[1] }}",
    "{{ 'abcdef'[1:4] }} {{ 'abcdef'[::2] }} {{ [1, 2, 3, 4][1:] }} {{ [1, 2, 3, 4][:-1] }} {{ 'abc'[-2:] }}",
    "{{ state.name is defined }} {{ missing is undefined }} {{ none is none }} {{ 3 is odd }} {{ 4 is divisibleby 2 }} {{ 4 is not even }}",
    "{{ 1 is number }} {{ 'a' is string }} {{ [] is sequence }} {{ {} is mapping }} {{ 'abc' is startingwith 'a' }} {{ 2 is gt 1 }} {{ 1 is in [1] }}",
    "{{ 'hello World'|title }} {{ 'hELLO'|capitalize }} {{ 'AbC'|lower }} {{ ' x '|trim }} {{ 'xxaxx'|trim('x') }}",
    "{{ 'a-b-a'|replace('a', 'xy') }} {{ 'abc'|length }} {{ state.tags|count }} {{ 'abc'|reverse }} {{ [1, 2]|reverse }}",
    "{{ state.tags|join(', ') }} {{ state.people|join('/', attribute='name') }} {{ [1, none]|join }}",
    "{{ 'a b  c'|split }} {{ 'a,b,c'|split(',') }} {{ 'a,b,c'|split(',', 1) }} {{ state.text|lines }}",
    "{{ missing|default('d') }} {{ ''|default('d') }} {{ ''|default('d', true) }} {{ missing|d }}",
    "{{ 2.567|round(1) }} {{ 2.5|round }} {{ -3|abs }} {{ '42'|int }} {{ 3.9|int }} {{ '1.5'|float }} {{ 2.1|round(method='ceil') }}",
    "{{ state.tags|first }} {{ state.tags|last }} {{ [3, 1, 2]|min }} {{ [3, 1, 2]|max }} {{ [1, 2]|sum }}",
    "{{ state.tags|sort }} {{ state.tags|sort(reverse=true) }} {{ state.tags|unique }} {{ state.people|sort(attribute='age')|map(attribute='name')|list }}",
    "{{ [1, 2, 3]|map('string')|list }} {{ [1, 2, 3]|select('odd')|list }} {{ [1, 2, 3]|reject('odd')|list }} {{ ['a']|map('upper')|join }}",
    "{{ state.people|selectattr('age', 'eq', 36)|map(attribute='name')|join(',') }} {{ state.people|rejectattr('langs')|map(attribute='name')|join }}",
    "{{ [1, 2, 3, 4, 5]|batch(2)|list }} {{ [1, 2, 3]|batch(2, 'x')|list }} {{ [1, 2, 3, 4, 5]|slice(2)|list }}",
    "{{ state.text|indent }} {{ state.text|indent(2, true) }}",
    "{{ {'b': 1, 'A': 2}|dictsort }} {{ session.metadata|dictsort }}",
    "{% for g in state.people|groupby('age') %}{{ g[0] }}:{{ g[1]|length }} {% endfor %}",
    "{{ '%s is %d'|format('x', 3) }} {{ '%.2f'|format(1.5) }} {{ '%d %d'|format(9007199254740993, -3) }} {{ 'x'|string }} {{ 1|bool }} {{ 5|string|length }}",
    "{{ [1, 2]|zip(['a', 'b'])|list }} {{ [1]|chain([2])|list }} {{ session|attr('owner') }}",
    "{{ dict(a=1).a }} {{ \"q'\" }} {{ 'tab\\tnew\\nline \\u00e9' }} {{ {'a': 'x\\ny'} }}",
    "{{ -state.half }} {{ 1 if not state.on else 2 }} {{ ('a', )[0] }}",
    "line one\n{% if true %}\ninner\n{% endif %}\nlast",
];

#[test]
fn templates_render_as_in_jinja() {
    let mut jinja = minijinja::Environment::new();
    jinja.set_undefined_behavior(minijinja::UndefinedBehavior::Chainable);
    let different = SAME.iter().filter_map(|source| {
        let expected = jinja.render_str(source, minijinja::value::Serde(context()));
        let (expected, rendered) =
            (expected.map_err(|error| format!("{error:#}")), render(source, &context()));
        let is_same = expected.as_ref().ok() == rendered.as_ref().ok();
        (!is_same).then(|| format!("{source}\n  jinja: {expected:?}\n  here:  {rendered:?}\n"))
    });
    let different: String = different.collect();
    assert!(different.is_empty(), "{different}");
}

#[test]
fn errors_name_the_line() {
    for (source, message) in [
        ("a\n{{ x", "line 2: there is no end `}}`"),
        ("{% if x %}", "line 1: a block has no end: write {% endif %}"),
        ("{{ 1 + }}", "line 1: expected a value, found the end"),
        ("\n\n{{ 'a'|nothing }}", "line 3: filter nothing: there is no filter \"nothing\""),
        ("{{ x is nothing }}", "line 1: there is no test \"nothing\""),
        ("{% include 'x' %}", "line 1: unknown statement \"include\""),
        ("{% macro x() %}{% endmacro %}", "line 1: unknown statement \"macro\""),
        ("{{ 1 / 0 }}", "line 1: `/` has no result for these numbers"),
        ("{{ 'x'.upper() }}", "line 1: a undefined cannot be called"),
    ] {
        assert_eq!(render(source, &context()).unwrap_err().to_string(), message, "{source}");
    }
}

/// Repeats a part of a template.
fn repeated(times: usize, part: &str) -> String {
    (0..times).map(|_| part).collect()
}

/// A template that evaluates `part` 5000 times, where `s` is a text of 3 MB.
fn repeated_on_a_long_text(part: &str) -> String {
    format!("{{% set s = 'a' * 3000000 %}}{{% for i in range(5000) %}}{part}{{% endfor %}}")
}

/// Statements that keep 200 namespaces, each made of the map `map`.
fn namespaces_of_a_map() -> String {
    (0..200).map(|at| format!("{{% set n{at} = namespace(map) %}}")).collect()
}

/// Templates that would take too much time or memory without a budget.
fn hostile() -> Vec<String> {
    let doubling = |operation: &str| {
        format!(
            "{{% set x = 'aaaaaaaa' %}}{}{{{{ x }}}}",
            repeated(60, &format!("{{% set x = {operation} %}}"))
        )
    };
    let within_loop = |operation: &str| {
        format!(
            "{{% set n = namespace(x='aaaaaaaa') %}}{{% for i in range(90) %}}{{% set n.x = {operation} %}}{{% endfor %}}{{{{ n.x|length }}}}"
        )
    };
    let lists = |step: &str, end: &str| format!("{{% set x = [1] %}}{}{end}", repeated(200, step));
    vec![
        doubling("x ~ x"),
        doubling("x + x"),
        doubling("x * 2"),
        doubling("[x, x]|join"),
        doubling("x|replace('a', 'aa')"),
        doubling("'%s%s'|format(x, x)"),
        doubling("x|indent(200000, true)"),
        within_loop("n.x ~ n.x"),
        within_loop("n.x * 1000"),
        within_loop("[n.x, n.x]"),
        "{% set n = namespace(x=1) %}{% for i in range(30000) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}".into(),
        "{% set n = namespace() %}{% set n.x = n %}{{ n }}".into(),
        "{% set n = namespace() %}{% set l = [n] %}{% set n.x = l %}{{ n }}".into(),
        "{{ 'a' * 100000000000 }}".into(),
        "{{ ('a' * 1000000) * 1000000 }}".into(),
        "{{ [1] * 100000000000 }}".into(),
        "{{ 'x'|indent(100000000000, true) }}".into(),
        "{{ ('x\n' * 100000)|indent(100000) }}".into(),
        "{{ '%999999999d'|format(1) }}{{ '%.999999999f'|format(1.5) }}".into(),
        "{{ range(100000)|list|join('a' * 100000) }}".into(),
        "{{ ('a' * 1000000)|replace('a', 'b' * 1000000) }}".into(),
        "{{ ('a' * 1000000)|replace('', 'b' * 1000000) }}".into(),
        "{{ ('a' * 4000000)|list|length }}".into(),
        "{{ [1]|batch(100000000000, 'x') }}".into(),
        "{{ [1]|slice(100000000000) }}".into(),
        "{{ range(1000000000000) }}{{ range(0, -1000000000000, -1) }}".into(),
        format!("{}x{}", repeated(40, "{% for i in range(10) %}"), repeated(40, "{% endfor %}")),
        "{% set s %}{% for i in range(90000) %}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{% endfor %}{% endset %}{{ s|length }}".into(),
        lists("{% set x = [x, x] %}", "{{ x }}"),
        lists("{% set x = {'a': x, 'b': x} %}", "{{ x }}"),
        format!("{{% set x = [1] %}}{}{{{{ x }}}}", repeated(22, "{% set x = [x, x] %}")),
        format!(
            "{{% set x = [1] %}}{{% set y = [1] %}}{}{{{{ x == y }}}}",
            repeated(22, "{% set x = [x, x] %}{% set y = [y, y] %}")
        ),
        lists("{% set x = x + x %}", "{{ x|length }}"),
        lists("{% set x = x|chain(x) %}", "{{ x|length }}"),
        lists("{% set x = x|zip(x) %}", "{{ x }}"),
        lists("{% set x = [x]|groupby('a') %}", "{{ x }}"),
        "{% for x in [1] recursive %}{{ loop([1, 2]) }}{% endfor %}".into(),
        "{{ [range(1000), range(1000)]|map('map', 'map', 'map', 'map', 'string')|list }}".into(),
        format!("{{{{ [[1]]|map({}'string') }}}}", repeated(10_000, "'map', ")),
        format!("{{{{ {}1{} }}}}", "(".repeat(20_000), ")".repeat(20_000)),
        format!("{{{{ {}1{} }}}}", "[".repeat(20_000), "]".repeat(20_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(20_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(20_000)),
        format!("{{{{ {}1 }}}}", "1 if 1 else ".repeat(20_000)),
        format!("{}{}", repeated(20_000, "{% if 1 %}"), repeated(20_000, "{% endif %}")),
        repeated(60_000, "{{ 1 }}"),
        "{% for i in range(99999) %}{% endfor %}".into(),
        "{% for i in range(40000) %}{{ ('a' * 1000) == ('a' * 1000) }}{% endfor %}".into(),
        "{% for i in range(20000) %}{% if state == state %}{% endif %}{% endfor %}".into(),
        "{% for i in range(20000) %}{{ big[-1:] }}{% endfor %}".into(),
        "{% for i in range(20000) %}{{ big|first }}{% endfor %}".into(),
        repeated_on_a_long_text("{{ s|length }}"),
        repeated_on_a_long_text("{{ s is startingwith s }}"),
        repeated_on_a_long_text("{{ s is endingwith s }}"),
        repeated_on_a_long_text("{{ state[s] }}"),
        repeated_on_a_long_text("{{ s in state }}"),
        "{{ range(5000)|map(attribute='0' * 1000000)|list|length }}".into(),
        format!("{{% set map = {{'a' * 1000000: 1}} %}}{}", namespaces_of_a_map()),
    ]
}

/// The peak of this process's memory, in KiB.
fn peak_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

#[test]
fn a_hostile_template_ends_with_an_error_and_takes_little_memory() {
    let mut context = context();
    context["big"] = "a".repeat(60_000).into();
    for source in hostile() {
        let before = peak_kib();
        // Deep nesting must not overflow a stack of the size that the server's worker threads have.
        let worker = std::thread::Builder::new().stack_size(2 << 20);
        let (given, context) = (source.clone(), context.clone());
        let rendered = worker.spawn(move || render(&given, &context)).unwrap().join().unwrap();
        let excerpt = &source[..source.floor_char_boundary(200)];
        let error = rendered.map(|text| text.len()).expect_err(excerpt).to_string();
        assert!(
            error.contains("more than") || error.contains("cannot") || error.contains("knows"),
            "{excerpt}: {error}"
        );
        let grown = peak_kib().saturating_sub(before);
        assert!(grown < 64 << 10, "{excerpt}: {grown} KiB");
    }
}

/// If each comparison read the whole long text, this template would take minutes.
#[test]
fn ordering_a_long_text_costs_no_more_than_a_short_one() {
    let source = "{{ ([('é' * 1200000)] + ['a'] * 20000)|unique|length }}";
    assert_eq!(render(source, &json!({})), Ok("2".into()));
}

#[test]
fn long_chains_do_not_count_as_nesting() {
    for (source, expected) in [
        (format!("{{{{ 0{} }}}}", " + 1".repeat(10_000)), "10000"),
        (format!("{{{{ x{} }}}}", ".a".repeat(10_000)), ""),
        (format!("{{{{ ' x '{} }}}}", "|trim".repeat(10_000)), "x"),
        (format!("{{% if 0 %}}{}{{% else %}}z{{% endif %}}", repeated(5_000, "{% elif 0 %}")), "z"),
        (format!("{{{{ 0{} }}}}", " or 0".repeat(10_000)), "0"),
    ] {
        assert_eq!(render(&source, &json!({})), Ok(expected.into()));
    }
}

#[test]
fn a_condition_is_one_expression_evaluated_within_the_budget() {
    let context = json!({"state": {"plan": ["a"], "n": 3}, "last": {"agent": "planner", "text": "APPROVED"}});
    for (source, wanted) in [
        ("state.plan is defined and last.agent == 'planner'", true),
        ("state.n > 3", false),
        ("state.missing", false),
        ("'APPROVED' in last.text", true),
        ("{'a': 1}", true),
        ("-state.n < 0", true),
    ] {
        check_expression(source).unwrap();
        assert_eq!(is_true(source, &context), Ok(wanted), "{source}");
    }
    for source in ["", "state.", "a }}{{ b", "a }} text", "x }}{% if y %}{{ z", "{% if x %}{% endif %}"] {
        assert!(check_expression(source).is_err(), "{source}");
    }
    let endless = "range(99999)|map('string')|join|length > range(99999)|map('string')|join|length";
    assert!(is_true(endless, &context).unwrap_err().to_string().contains("more than"), "bounded");
}

#[test]
fn a_plain_text_renders_to_itself() {
    for text in ["", "Count the words.", "Two lines:\nthe second }} %} #}", "  spaces  ", "a\\b"] {
        assert!(is_plain(text), "{text:?}");
        assert_eq!(render(text, &json!({})).unwrap(), text);
    }
    for text in ["{{ x }}", "{% if x %}", "{# x #}", "ends with a newline\n", "{"] {
        assert!(!is_plain(text), "{text:?}");
    }
}

#[test]
fn the_remainder_of_the_largest_numbers_is_exact() {
    let largest = "(2 ** 126 - 1 + 2 ** 126)";
    let source = format!("{{{{ 'exact' if (-{largest} - 1) % {largest} == {largest} - 1 }}}}");
    assert_eq!(render(&source, &json!({})).unwrap(), "exact");
}
