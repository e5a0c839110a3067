//! The tutorial, followed step by step in a project of its own.

use std::fs;
use std::path::Path;
use std::process::Command;

use regex::Regex;

use super::page::{Block, pages, read, root};

/// Makes the change that a `diff` block shows.
fn change(program: &str, diff: &str) -> String {
    let side = |other: char| -> String {
        let lines = diff.lines().filter(|line| !line.starts_with(other));
        lines
            .map(|line| format!("{}\n", line.get(1..).unwrap_or("")))
            .collect()
    };
    let (before, after) = (side('+'), side('-'));
    assert_eq!(
        program.matches(&before).count(),
        1,
        "it does not apply:\n{diff}\nto\n{program}"
    );
    program.replacen(&before, &after, 1)
}

/// Runs the project as `cargo run` does, with what this package's tests have built of its dependencies.
fn run(project: &Path) -> String {
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().nth(3).unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--offline"])
        .current_dir(project)
        .env("CARGO_TARGET_DIR", target)
        .output()
        .expect("cargo");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(!errors.contains("main.rs"), "no warning either: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Lines with every number replaced, as losses, memory and sizes are never the same twice.
fn shape(text: &str) -> Vec<String> {
    let number = Regex::new(r"(at most )?[0-9]+(\.[0-9]+)?").unwrap();
    text.lines()
        .map(|line| number.replace_all(line, "N").into_owned())
        .collect()
}

fn losses(text: &str) -> Vec<f32> {
    let loss = Regex::new(r"loss ([0-9.]+)").unwrap();
    loss.captures_iter(text)
        .map(|loss| loss[1].trim_end_matches('.').parse().unwrap())
        .collect()
}

/// It prints at each step what the page says, apart from the numbers.
#[test]
#[ignore = "builds a project of its own; .ci/run runs it"]
fn the_tutorial_works_as_it_is_written() {
    let pages = pages();
    let page = pages
        .iter()
        .find(|page| page.path == "tutorial/first-run")
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let project = folder.path().join("first-run");
    fs::create_dir_all(project.join("src")).unwrap();
    std::os::unix::fs::symlink(root(), folder.path().join("candle-headroom")).unwrap();
    fs::copy(root().join("Cargo.lock"), project.join("Cargo.lock")).unwrap();

    let own = read("Cargo.toml");
    let profiles: Vec<&str> = own
        .split("\n[")
        .filter(|section| section.starts_with("profile."))
        .collect();
    let profiles = format!("\n[{}", profiles.join("\n["));
    let mut program = String::new();
    let mut outputs = Vec::new();
    for Block { language, text } in page.blocks() {
        match &*language {
            "toml" => fs::write(project.join("Cargo.toml"), text + &profiles).unwrap(),
            "rust" => program = text,
            "diff" => program = change(&program, &text),
            "text" => {
                fs::write(project.join("src/main.rs"), &program).unwrap();
                let printed = run(&project);
                let expected = shape(&text);
                assert_eq!(&shape(&printed)[..expected.len()], expected, "{printed}");
                let losses = losses(&printed);
                assert!(
                    losses.len() == 4 && losses[3] < 0.7 * losses[0],
                    "{printed}"
                );
                outputs.push(printed);
            }
            _ => {}
        }
    }
    fs::write(project.join("src/main.rs"), &program).unwrap();
    outputs.push(run(&project));
    let [alone, trained, limited, watched] = &outputs[..] else {
        panic!("{} outputs", outputs.len())
    };
    assert!(!alone.contains("micro-batch"), "{alone}");
    assert!(trained.contains("in 1 micro-batch of 6000"), "{trained}");
    assert!(
        limited.contains("micro-batches of"),
        "the limit cuts: {limited}"
    );
    assert_eq!(shape(limited).len(), shape(watched).len());
    let html = fs::read_to_string(project.join("run.html")).unwrap();
    assert!(html.contains("Three spirals"));
}
