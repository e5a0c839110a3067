//! The environment checker's time on a machine without a GPU, the symptoms it recognizes, and a count of conditions beside others.
//!
//! `cargo bench --bench doctor [-- --quick]`

mod support;

#[cfg(target_os = "linux")]
#[path = "../crates/environment/tests/environment/conditions.rs"]
mod conditions;
#[cfg(target_os = "linux")]
#[path = "../crates/environment/tests/environment/machine.rs"]
mod machine;
#[cfg(target_os = "linux")]
#[path = "../crates/environment/tests/environment/symptoms/mod.rs"]
mod symptoms;

#[cfg(target_os = "linux")]
fn main() {
    use std::time::Instant;

    use machine::{Machine, codes};
    use support::{figure, is_quick, median};
    use symptoms::SYMPTOMS;

    // The first check of a process, and the median of more.
    let machine = Machine::plain();
    let times = (0..if is_quick() { 20 } else { 200 }).map(|_| {
        let started = Instant::now();
        std::hint::black_box(machine.check());
        started.elapsed().as_secs_f64()
    });
    let times: Vec<_> = times.collect();
    println!("the first check takes {:.6} s", times[0]);
    let slowest = times.iter().copied().fold(0., f64::max);
    println!("the median of {} takes {:.6} s", times.len(), median(times));

    let recognised = SYMPTOMS.iter().filter(|symptom| {
        let is_found = codes(&(symptom.machine)().check()).contains(&symptom.code);
        if !is_found {
            println!("not recognised: {}", symptom.what);
        }
        is_found
    });
    let recognised = recognised.count();

    figure("doctor/seconds_without_gpu", slowest, "s");
    figure("doctor/symptoms_tested", recognised as f64, "symptoms");
    for (checker, count) in conditions::covered() {
        let name = match checker {
            "here" => "doctor/conditions_covered".to_owned(),
            peer => format!("doctor/conditions_covered_by_{peer}"),
        };
        figure(&name, count as f64, "conditions");
    }
    assert_eq!(recognised, SYMPTOMS.len(), "a symptom is not recognised");
    assert!(
        slowest <= 1.,
        "a check without a GPU takes more than a second"
    );
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped: machines are laid out as Linux has them");
}
