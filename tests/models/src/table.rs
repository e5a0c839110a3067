//! The table: how many Vars each model reaches, with which gradients, and for how many bytes.

use crate::models::{Model, is_statistic, named};
use crate::outcome::Outcome;
use crate::run::norm;
use candle_core::Tensor;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

type Run = (Outcome, HashMap<String, Tensor>);

/// A difference counts in proportion to a gradient's norm, but not below this part of the whole gradient's: a key's bias, for
/// example, has no effect on attention, and its gradient is rounding.
const FLOOR: f64 = 1e-4;

pub fn print(
    original: Option<&Path>,
    plain: &Path,
    ours: Option<&Path>,
    names: &[&str],
) -> anyhow::Result<()> {
    println!(
        "| model | Vars | reached with candle_nn | with candle_headroom::nn | MiB per sample, plain | candle_headroom::nn | worst relative difference of a gradient | remarks |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let (mut tried, mut full_before, mut full, mut documented) = (0, 0, 0, vec![]);
    for name in names {
        let model = named(name)?;
        let original = original
            .map(|original| Outcome::load(original, name))
            .transpose()?;
        let plain = Outcome::load(plain, name)?;
        // While there is no candle_headroom::nn, the plain compositions stand in for it.
        let ours = ours.map(|ours| Outcome::load(ours, name)).transpose()?;
        let shown = ours.as_ref().unwrap_or(&plain);
        let reached = fully_reached(&model, shown);
        let mut remarks = vec![model.remark.to_string()];
        remarks.extend(model.impossible.filter(|_| !reached).map(str::to_string));
        for (variant, run) in [
            ("candle_nn", original.as_ref()),
            ("plain", Some(&plain)),
            ("candle_headroom::nn", ours.as_ref()),
        ] {
            let Some(run) = run else { continue };
            remarks.extend(
                run.0
                    .error
                    .as_ref()
                    .map(|error| format!("{variant}: {}", first_line(error))),
            );
        }
        remarks.extend(checks(&model, shown, &plain)?);
        tried += 1;
        full_before += usize::from(
            original
                .as_ref()
                .is_some_and(|run| fully_reached(&model, run)),
        );
        full += usize::from(reached);
        documented.extend(model.impossible.filter(|_| !reached).map(|_| model.name));
        let difference = match &ours {
            Some(ours) => {
                difference(&ours.1, &plain.1)?.map(|(worst, name)| format!("{worst:.1e} `{name}`"))
            }
            None => None,
        };
        remarks.retain(|remark| !remark.is_empty());
        println!(
            "| {name} | {} | {} | {} | {} | {} | {} | {} |",
            plain.0.vars.len(),
            original
                .map(|run| run.1.len().to_string())
                .unwrap_or_default(),
            shown.1.len(),
            mib(&plain.0),
            ours.as_ref().map(|ours| mib(&ours.0)).unwrap_or_default(),
            difference.unwrap_or_default(),
            remarks.join("; ")
        );
    }
    println!();
    println!("figure: nn/models_tried = {tried} models");
    println!("figure: nn/models_fully_reached_candle_nn = {full_before} models");
    println!("figure: nn/models_fully_reached = {full} models");
    println!(
        "Documented as not trainable by this alone: {}.",
        if documented.is_empty() {
            "none".into()
        } else {
            documented.join(", ")
        }
    );
    Ok(())
}

fn fully_reached(model: &Model, (outcome, gradients): &Run) -> bool {
    let mut needed = outcome
        .vars
        .iter()
        .filter(|var| model.why_unused(var).is_none());
    outcome.error.is_none() && needed.all(|var| gradients.contains_key(var))
}

/// What a reader should know about a run's gradients.
fn checks(model: &Model, (outcome, gradients): &Run, plain: &Run) -> anyhow::Result<Vec<String>> {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut missing, mut zero, mut fused, mut wrong) = (vec![], 0, 0, vec![]);
    for var in &outcome.vars {
        match (gradients.get(var), model.why_unused(var)) {
            (None, Some(reason)) => *reasons.entry(reason).or_default() += 1,
            (None, None) => missing.push(var.as_str()),
            // Where BatchNorm is fused into the convolution at load time, its statistics are weights like others.
            (Some(_), Some(_)) if is_statistic(var) => fused += 1,
            (Some(_), Some(reason)) => {
                wrong.push(format!("`{var}` is reached, though noted as {reason}"))
            }
            (Some(gradient), None) => zero += usize::from(norm(gradient)? == 0.0),
        }
    }
    let mut remarks: Vec<String> = reasons
        .iter()
        .map(|(reason, count)| format!("{count} unused: {reason}"))
        .collect();
    if !missing.is_empty() {
        let shown: Vec<_> = missing
            .iter()
            .take(4)
            .map(|name| format!("`{name}`"))
            .collect();
        remarks.push(format!(
            "**{} not reached**: {}",
            missing.len(),
            shown.join(", ")
        ));
    }
    if fused > 0 {
        remarks.push(format!(
            "BatchNorm is fused at load time, so {fused} running statistics receive gradients too"
        ));
    }
    if zero > 0 {
        remarks.push(format!("{zero} gradients are zero"));
    }
    if let Some(slope) = plain.0.slope.filter(|slope| (slope - 1.0).abs() > 0.05) {
        remarks.push(format!(
            "the loss changes {slope:.3} times as the plain gradient says"
        ));
    }
    remarks.extend(wrong);
    Ok(remarks)
}

/// The largest norm of a gradient's difference from the reference, in proportion to the reference's.
fn difference(
    ours: &HashMap<String, Tensor>,
    plain: &HashMap<String, Tensor>,
) -> anyhow::Result<Option<(f64, String)>> {
    let norms = plain
        .iter()
        .map(|(name, gradient)| Ok((name, norm(gradient)?)))
        .collect::<candle_core::Result<HashMap<_, _>>>()?;
    let whole = norms.values().map(|norm| norm * norm).sum::<f64>().sqrt();
    let mut worst: Option<(f64, String)> = None;
    for (name, reference) in plain {
        let Some(gradient) = ours.get(name) else {
            continue;
        };
        let apart = norm(&(gradient - reference)?)? / norms[name].max(FLOOR * whole);
        if worst.as_ref().is_none_or(|(most, _)| !(apart <= *most)) {
            worst = Some((apart, name.clone()));
        }
    }
    Ok(worst)
}

fn mib(outcome: &Outcome) -> String {
    match outcome.bytes_per_sample {
        Some(bytes) => format!("{:.3}", bytes / (1 << 20) as f64),
        None => "–".to_string(),
    }
}

fn first_line(error: &str) -> &str {
    error.lines().next().unwrap_or_default()
}
