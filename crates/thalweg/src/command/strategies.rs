//! `thalweg strategies`: the presets, the values they set, the systems they come from and when to use them.

use super::{print, print_json};
use crate::view::formatting::wrapped;
use serde_json::{Value, json};
use std::fmt::Write;
use thalweg_core::Result;
use thalweg_core::spec::preset::{self, Dial, DialKind, Preset};
use thalweg_core::spec::{JobLayers, JobSpec, Origin};
use thalweg_train::registry;

/// Prints the list, as text or as JSON.
pub fn run(as_json: bool) -> Result<()> {
    if as_json {
        return print_json(&preset::all().map(entry).collect::<Vec<_>>());
    }
    print(&listing())
}

/// A preset as JSON.
fn entry(preset: &Preset) -> Value {
    let shown = |dial: &Dial| match dial.value.formula() {
        Some(formula) => json!(formula),
        None => json!(dial.value.with(1)),
    };
    let dials: serde_json::Map<String, Value> =
        preset.dials.iter().map(|dial| (dial.key.into(), shown(dial))).collect();
    let fixed: Vec<&str> = preset.dials.iter().filter(|dial| dial.is_fixed()).map(|dial| dial.key).collect();
    let covers: Vec<Value> =
        preset.covers.iter().map(|(element, by)| json!({ "element": element, "by": by })).collect();
    json!({
        "name": preset.name,
        "system": preset.system,
        "version": preset.version,
        "dials": dials,
        "fixed": fixed,
        "summary": preset.summary,
        "when": preset.when,
        "elastic": is_elastic(preset),
        "deterministic": job(preset).map(|job| registry::of(&job).claims.deterministic),
        "covers": covers,
        "missing": preset.missing,
    })
}

/// A job with nothing but this preset.
fn job(preset: &Preset) -> Option<JobSpec> {
    let mut layers = JobLayers::default();
    layers.set("strategy.preset", preset.name.into(), Origin::Default);
    Some(registry::resolve(layers).ok()?.spec)
}

/// Whether jobs of this preset continue after the loss of a worker; `None` for those with one worker.
fn is_elastic(preset: &Preset) -> Option<bool> {
    let job = job(preset)?;
    (registry::ranks(&job) > 1).then(|| registry::is_elastic(&job))
}

/// The system, and the version whose defaults are meant.
fn system(preset: &Preset) -> String {
    match preset.version {
        Some(version) => format!("{}; defaults of {version}", preset.system),
        None => preset.system.into(),
    }
}

/// What happens to its jobs when a worker is lost.
fn after_a_loss(preset: &Preset) -> Option<&'static str> {
    is_elastic(preset).map(|elastic| match elastic {
        true => "the others continue; under torchrun, mpirun or srun the loss of rank 0 ends the job",
        false => "the job ends and names it; `thalweg resume` continues from the last checkpoint",
    })
}

fn is_default(preset: &Preset) -> bool {
    preset.name == JobSpec::default().strategy.preset
}

/// The dials of a kind: `exchange.kind = ring, engine.workers = 1`.
fn dials(preset: &Preset, kind: DialKind) -> String {
    let short = |key: &'static str| key.strip_prefix("strategy.").unwrap_or(key);
    let dials = preset.dials.iter().filter(|dial| dial.kind == kind);
    let dials: Vec<String> = dials.map(|dial| format!("{} = {}", short(dial.key), dial.value)).collect();
    dials.join(", ")
}

fn listing() -> String {
    let mut text = String::from("Use one with --strategy NAME, or preset = \"NAME\" under [strategy].\n");
    for preset in preset::all() {
        let note = if is_default(preset) { " (the default)" } else { "" };
        let _ = writeln!(text, "\n{}{note}", preset.name);
        text += &wrapped(preset.summary, 4);
        text += &wrapped(&format!("from: {}", system(preset)), 4);
        text += &wrapped(&format!("use:  {}", preset.when), 4);
        text += &wrapped(&format!("sets: {}", dials(preset, DialKind::Fixed)), 4);
        if preset.dials.iter().any(|dial| !dial.is_fixed()) {
            text += &wrapped(&format!("unless the job does: {}", dials(preset, DialKind::Default)), 4);
        }
        if let Some(outcome) = after_a_loss(preset) {
            text += &wrapped(&format!("lost worker: {outcome}"), 4);
        }
        if !preset.missing.is_empty() {
            text += &wrapped(&format!("not yet here: {}", preset.missing.join("; ")), 4);
        }
    }
    text
}

/// The page `docs/strategies.md`.
pub fn document() -> String {
    let mut text = String::from(
        "# Strategies\n\n\
         How the work is distributed is a choice of a few dials ([`[strategy]` in the job](job.md)); every preset is a setting of\n\
         them under the name of the system it comes from. `thalweg train --strategy NAME` uses one, `thalweg strategies` prints\n\
         this list. A value of the job that differs from a fixed dial of its preset is refused by name; a default yields to it. n is\n\
         `engine.workers`. An optimizer that a preset sets yields to one that the job names; in `thalweg chaos` and `thalweg compare`\n\
         it replaces that of the job file, and the output says so. The `job.toml` of a run has every value (`resolved = true`) and keeps it when a preset changes.\n\n\
         *Generated from `crates/core/src/spec/preset`; `THALWEG_BLESS=1 cargo test -p thalweg --test docs` renews it.*\n\n\
         | preset | comes from | when to use it |\n|---|---|---|\n",
    );
    for preset in preset::all() {
        let _ = writeln!(text, "| [`{0}`](#{0}) | {1} | {2} |", preset.name, system(preset), preset.when);
    }
    for preset in preset::all() {
        let note = if is_default(preset) { " This is the default." } else { "" };
        let _ = write!(
            text,
            "\n## {}\n\n{}{note}\n\n| dial | value | |\n|---|---|---|\n",
            preset.name, preset.summary
        );
        for dial in preset.dials {
            let kind = if dial.is_fixed() { "fixed" } else { "default" };
            let _ = writeln!(text, "| `{}` | `{}` | {kind} |", dial.key, dial.value);
        }
        if let Some(outcome) = after_a_loss(preset) {
            let _ = write!(text, "\nWhen a worker is lost, {outcome} ([details](elastic.md)).\n");
        }
        text += "\nWhat of that system is here, with the dial that sets it or the test that shows it:\n\n";
        for (element, by) in preset.covers {
            let _ = writeln!(text, "- {element}: `{by}`");
        }
        if !preset.missing.is_empty() {
            text += "\nWhat that system has and Thalweg does not have yet:\n\n";
            for missing in preset.missing {
                let _ = writeln!(text, "- {missing}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_get_the_documented_keys_and_dials_as_an_object() {
        let single = preset::find("single").map(entry).unwrap();
        assert_eq!(single["dials"]["engine.workers"], 1);
        assert_eq!(single["dials"]["strategy.exchange.kind"], "none");
        let keys =
            ["name", "system", "version", "dials", "fixed", "summary", "when", "elastic", "deterministic"];
        for key in keys.into_iter().chain(["covers", "missing"]) {
            assert!(single.get(key).is_some(), "{key}");
        }
    }

    #[test]
    fn the_listing_fits_a_terminal_and_names_every_preset() {
        let text = listing();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(preset::all().all(|preset| text.contains(&format!("\n{}", preset.name))));
        assert!(text.contains("allreduce (the default)"));
    }
}
