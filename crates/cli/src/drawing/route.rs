//! The drawing of the route of a run through its network.

use std::fmt::Write as _;

use mainspring_client::{MemberCall, RouteDecision, RunRoute};
use mainspring_core::Usage;
use mainspring_core::network::{RouteEnd, RoutedBy};

use super::svg::{STYLE_SHEET, escape_xml};
use crate::output::format_duration;

/// Sizes within the image, in SVG user units.
const MARGIN: usize = 28;
const TOP: usize = 62;
const ROW_HEIGHT: usize = 30;
const LABEL_WIDTH: usize = 190;
const TIME_WIDTH: usize = 420;
const FACTS_WIDTH: usize = 250;

/// Draws the route of a run as text: every decision with its calls, then the sums per member.
pub(crate) fn route_text(route: &RunRoute) -> String {
    let mut text = format!("{} · {}\n", route.network, route.status);
    for decision in &route.decisions {
        let sign = if decision.route.next.is_some() { '●' } else { '■' };
        let _ = writeln!(text, "{sign} {}  {}", decision.route.no, decided(decision));
        for call in &decision.calls {
            let _ = writeln!(text, "│   {}  {}", call.member, facts(call));
        }
    }
    if !route.members.is_empty() {
        text.push_str("\nper member\n");
    }
    for total in &route.members {
        let took = format_duration(total.duration_ms);
        let (calls, steps) = (count(total.calls, "call"), count(total.steps, "model call"));
        let usage = usage(&total.usage);
        let _ = writeln!(text, "  {}  {calls}, {steps}, {took}, {usage}", total.member);
    }
    if !route.routing.is_zero() {
        let _ = writeln!(text, "  routing model  {}", usage(&route.routing));
    }
    text
}

/// Describes a decision of the router, and names the part of the router that made it.
fn decided(decision: &RouteDecision) -> String {
    let route = &decision.route;
    let by = match &route.by {
        RoutedBy::Sequence => "sequence".to_owned(),
        RoutedBy::Rule { rule } => format!("rule {rule}"),
        RoutedBy::Rules => "stack".to_owned(),
        RoutedBy::Code { name } => format!("code {name}"),
        RoutedBy::Model => "model".to_owned(),
        RoutedBy::Reducer => "reducer".to_owned(),
    };
    let mut text = match (&route.next, route.end) {
        (Some(stage), _) => format!("{by} → {}", stage.names().join(" + ")),
        (None, Some(RouteEnd::Done)) => format!("{by} → end"),
        (None, Some(RouteEnd::MaxIter)) => format!("end: at most {} agent calls", route.calls),
        (None, _) => "end: the stack is empty".to_owned(),
    };
    if !route.skipped.is_empty() {
        let _ = write!(text, " (not enabled: {})", route.skipped.join(", "));
    }
    if let Some(reason) = &route.reason {
        let _ = write!(text, " · {reason}");
    }
    text
}

fn facts(call: &MemberCall) -> String {
    let took = match call.completed_at_ms {
        Some(_) => format_duration(call.duration_ms()),
        None => "not ended".into(),
    };
    let child = call.child_run_id.map(|run| format!(", {run}")).unwrap_or_default();
    format!("{}, {took}, {}{child}", count(call.steps, "model call"), usage(&call.usage))
}

fn count(number: u32, of: &str) -> String {
    if number == 1 { format!("1 {of}") } else { format!("{number} {of}s") }
}

fn usage(usage: &Usage) -> String {
    format!("{} tokens in, {} out, {}", usage.input_tokens, usage.output_tokens, usage.cost)
}

/// Draws the route of a run as a self-contained SVG image: a bar over time for each call.
pub(crate) fn route_svg(route: &RunRoute) -> String {
    let calls: Vec<(&RouteDecision, &MemberCall)> = route
        .decisions
        .iter()
        .flat_map(|decision| decision.calls.iter().map(move |call| (decision, call)))
        .collect();
    let (width, height) =
        (MARGIN * 2 + LABEL_WIDTH + TIME_WIDTH + FACTS_WIDTH, TOP + calls.len().max(1) * ROW_HEIGHT + MARGIN);
    let title = escape_xml(&format!("{} · {} · {} calls", route.network, route.status, calls.len()));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" role=\"img\" aria-label=\"The route of a run through its network\">\n{STYLE_SHEET}\
         <rect class=\"page\" width=\"{width}\" height=\"{height}\" rx=\"10\"/>\n\
         <text class=\"head\" x=\"{MARGIN}\" y=\"30\">{title}</text>\n"
    );
    let starts = calls.iter().filter_map(|(_, call)| call.started_at_ms);
    let ends = calls.iter().filter_map(|(_, call)| call.completed_at_ms);
    let (first, last) = (starts.min().unwrap_or_default(), ends.max().unwrap_or_default());
    let whole = last.since(first).max(1);
    let place = |millis: u64| {
        let units = u128::from(millis) * TIME_WIDTH as u128 / u128::from(whole);
        usize::try_from(units).unwrap_or(TIME_WIDTH)
    };
    for (at, (decision, call)) in calls.iter().enumerate() {
        let y = TOP + at * ROW_HEIGHT;
        let from = call.started_at_ms.map_or(0, |started| place(started.since(first)));
        let long = place(call.duration_ms()).max(3);
        let x = MARGIN + LABEL_WIDTH;
        let _ = writeln!(
            svg,
            "<g><title>{}</title><text class=\"who agent\" x=\"{MARGIN}\" y=\"{}\">{} {}</text>\
             <rect x=\"{}\" y=\"{}\" width=\"{long}\" height=\"14\" rx=\"4\" fill=\"#3f6fd1\"/>\
             <text class=\"key\" x=\"{}\" y=\"{}\">{}</text></g>",
            escape_xml(&decided(decision)),
            y + 16,
            decision.route.no,
            escape_xml(&call.member),
            x + from,
            y + 5,
            x + TIME_WIDTH + 12,
            y + 16,
            escape_xml(&format!("{}, {}", format_duration(call.duration_ms()), usage(&call.usage))),
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn route() -> RunRoute {
        let usage = json!({"inputTokens": 10, "outputTokens": 5, "cacheReadTokens": 0, "cacheWriteTokens": 0, "costUsd": 0.01});
        let call = |member: &str, from: u64, to: u64| json!({"member": member, "agent": "a@1", "steps": 1, "startedAtMs": from, "completedAtMs": to, "usage": usage});
        serde_json::from_value(json!({
            "runId": "run_00000000000040008000000000000001", "network": "team@1", "status": "succeeded",
            "decisions": [
                {"routeNo": 1, "by": {"kind": "rule", "rule": 2}, "next": ["left", "right"], "calls": 2, "decidedAtMs": 1000,
                 "memberCalls": [call("left", 1000, 3000), call("right", 1000, 2000)]},
                {"routeNo": 2, "by": {"kind": "model"}, "reason": "<good>", "calls": 2, "end": "done", "decidedAtMs": 3000},
            ],
            "members": [{"member": "left", "calls": 1, "steps": 1, "durationMs": 2000, "usage": usage}],
        }))
        .expect("a route")
    }

    #[test]
    fn the_route_of_a_run_is_drawn_as_text() {
        insta::assert_snapshot!(route_text(&route()), @r"
        team@1 · succeeded
        ● 1  rule 2 → left + right
        │   left  1 model call, 2.0 s, 10 tokens in, 5 out, $0.010000
        │   right  1 model call, 1.0 s, 10 tokens in, 5 out, $0.010000
        ■ 2  model → end · <good>

        per member
          left  1 call, 1 model call, 2.0 s, 10 tokens in, 5 out, $0.010000
        ");
    }

    #[test]
    fn an_image_has_a_bar_for_each_call_as_long_as_its_duration() {
        let svg = route_svg(&route());
        assert!(
            svg.contains("width=\"420\" height=\"14\"") && svg.contains("width=\"210\" height=\"14\""),
            "{svg}"
        );
        assert!(svg.contains(">1 left</text>"), "{svg}");
    }
}
