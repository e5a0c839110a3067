//! Gradients of every function against central differences in f64.

use crate::functions::all;
use crate::functions::layouts::Probe;

#[test]
fn gradients_are_those_of_central_differences() {
    let (mut cases, mut wrong, mut failing) = (0, Vec::new(), Vec::new());
    for case in all().iter().filter(|case| case.no_differences.is_none()) {
        for probe in Probe::all(case) {
            cases += 1;
            match probe.off() {
                // The step's square, and the rounding of the loss divided by the step.
                Ok(off) if off < 1e-7 => {}
                Ok(off) => wrong.push(format!("{}: {off:e} off", probe.name())),
                Err(error) => failing.push(format!("{}: {error}", probe.name())),
            }
        }
    }
    println!("figure: gradients/nn_cases = {cases} cases");
    println!("figure: gradients/nn_cases_wrong = {} cases", wrong.len());
    println!(
        "figure: gradients/nn_cases_failing = {} cases",
        failing.len()
    );
    assert!(
        wrong.is_empty() && failing.is_empty(),
        "wrong: {wrong:#?}\nfailing: {failing:#?}"
    );
}
