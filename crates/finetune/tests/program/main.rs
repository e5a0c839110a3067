//! The program `finetune` as a user runs it: what it trains and saves, and what it refuses.

mod chat;
#[path = "../../../../tests/programs/figures.rs"]
mod figures;
#[cfg(unix)]
mod hub;
#[cfg(feature = "parquet")]
mod parquet;
mod printed;
#[cfg(feature = "mpi")]
mod ranks;
mod refused;
mod resumed;

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use candle_core::{Device, Tensor};
use tempfile::TempDir;

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_finetune"))
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(arguments).env("RUST_BACKTRACE", "1");
    for name in ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"] {
        command.env_remove(name).env_remove(name.to_lowercase()); // a test has a hub of its own, on this machine
    }
    command
}

/// Both outputs and the status, for messages.
fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part));
    format!("{}\n{out}\n{err}", output.status)
}

/// What a run prints that succeeds.
fn succeed(arguments: &[&str]) -> String {
    let output = command(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn figure(output: &str, name: &str) -> f64 {
    figures::figure("finetune", output, name)
}

/// What the program makes when nothing is given, in a few steps: its output, and the folder with the models and the data, which stays
/// until the tests run again. It has this process's number, because another run may be using its own.
fn demonstration() -> &'static (String, PathBuf) {
    static MADE: OnceLock<(String, PathBuf)> = OnceLock::new();
    MADE.get_or_init(|| {
        let all = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let is_left = |name: &str| {
            let process = name.strip_prefix("finetune-");
            process.is_some_and(|process| !Path::new("/proc").join(process).exists())
        };
        for entry in fs::read_dir(all).unwrap().flatten() {
            if entry.file_name().to_str().is_some_and(is_left) {
                fs::remove_dir_all(entry.path()).ok(); // or another run does
            }
        }
        let folder = all.join(format!("finetune-{}", std::process::id()));
        if folder.exists() {
            fs::remove_dir_all(&folder).unwrap(); // of a process that had this number
        }
        let path = folder.to_str().unwrap();
        let said = succeed(&[
            "--output", path, "--steps", "12", "--sample", "4", "--seed", "7",
        ]);
        (said, folder)
    })
}

/// The small model, which has learned some documents.
fn base() -> &'static str {
    static BASE: OnceLock<String> = OnceLock::new();
    let path = || demonstration().1.join("base").display().to_string();
    BASE.get_or_init(path)
}

/// Files of a test.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// For checkpoints that nobody should have to wait for.
    #[cfg(unix)]
    fn in_memory() -> Self {
        let memory = tempfile::tempdir_in("/dev/shm");
        Self(memory.or_else(|_| tempfile::tempdir()).unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        fs::write(self.path(name), content).unwrap();
        self.path(name)
    }

    /// Pairs in which the completion follows from the prompt.
    fn pairs(&self) -> String {
        let line = |i: usize| {
            let word = ["tensor", "memory", "batch", "layer"][i % 4];
            format!("{{\"prompt\": \"the {word} \", \"completion\": \"is a {word}\"}}\n")
        };
        self.write("pairs.jsonl", (0..24).map(line).collect::<String>())
    }
}

/// Copies a model's folder.
fn copy(from: &str, to: &str) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), Path::new(to).join(entry.file_name())).unwrap();
    }
}

#[test]
fn without_arguments_it_makes_a_model_and_fine_tunes_it() {
    let (said, folder) = demonstration();
    let ratio = figure(said, "perplexity_after") / figure(said, "perplexity_before");
    assert!(ratio < 0.8, "{ratio}: {said}");
    assert!(
        figure(said, "loss_last") < figure(said, "loss_first"),
        "{said}"
    );
    for words in [
        " --held-out=0.01 --context=128 --batch=4 --full --steps=12 --learning-rate=0.005 --seed=7 --sample=0 ",
        " --context=128 --batch=4 --steps=12 --learning-rate=0.004 --seed=7 --sample=4 ",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(said.contains("after, read again from there:"), "{said}");
    let base = ["config.json", "tokenizer.json", "model.safetensors"];
    let adapter = ["adapter_config.json", "adapter_model.safetensors"];
    for (name, files) in [("base", &base[..]), ("adapter", &adapter)] {
        for file in files {
            let file = folder.join(name).join(file);
            assert!(file.is_file(), "{}", file.display());
        }
    }
    let options = fs::read(folder.join("adapter/adapter_config.json")).unwrap();
    let options: serde_json::Value = serde_json::from_slice(&options).unwrap();
    assert_eq!(options["peft_type"], "LORA");
    assert_eq!(
        options["base_model_name_or_path"].as_str().unwrap(),
        base_path(folder)
    );
}

fn base_path(folder: &Path) -> String {
    folder.join("base").display().to_string()
}

/// The printed command is the whole truth: it makes the same adapter, bit by bit.
#[test]
fn the_command_of_the_demonstration_does_the_same() {
    let (said, folder) = demonstration();
    let files = Files::new();
    let mut lines = said.lines().map(str::trim);
    let command = lines.rfind(|line| line.starts_with("finetune --model="));
    let words = command.expect("a command").split(' ').skip(1);
    let words: Vec<&str> = words
        .filter(|word| !word.starts_with("--output="))
        .collect();
    let output = files.path("again");
    succeed(&[&words[..], &["--output", &output]].concat());
    let first = folder.join("adapter");
    let [first, again] = [&first, Path::new(&output)]
        .map(|folder| fs::read(folder.join("adapter_model.safetensors")).unwrap());
    assert!(first == again, "another adapter by {words:?}");
}

/// The result is saved first: here the output is closed after the line of the last step.
#[test]
fn a_result_is_saved_before_anything_is_said() {
    let files = Files::new();
    let (data, output) = (files.pairs(), files.path("out"));
    let own = ["--model", base(), "--output", &output, "--steps", "11"];
    let mut child = command(&[&own[..], &["--sample", "0", &data]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("step 11: loss")));
    drop(lines);
    let ended = child.wait_with_output().unwrap();
    assert!(
        Path::new(&output)
            .join("adapter_model.safetensors")
            .is_file(),
        "{}",
        text(&ended)
    );
}

/// A loss that is not finite is a number too, as in training.
#[test]
fn a_loss_that_is_not_finite_is_printed() {
    let files = Files::new();
    let (data, adapter, output) = (files.pairs(), files.path("first"), files.path("second"));
    let own = ["--model", base(), "--steps", "1", "--sample", "0", &data];
    succeed(&[&own[..], &["--output", &adapter]].concat());
    let path = Path::new(&adapter).join("adapter_model.safetensors");
    let tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    let spoiled = tensors
        .into_iter()
        .map(|(name, tensor)| (name, (tensor.ones_like().unwrap() * f64::NAN).unwrap()));
    let spoiled: HashMap<String, Tensor> = spoiled.collect();
    candle_core::safetensors::save(&spoiled, &path).unwrap();
    let mut run = command(&[&own[..], &["--adapter", &adapter, "--output", &output]].concat());
    let said = text(&run.output().unwrap());
    assert!(said.contains("after 0 updates: loss NaN"), "{said}");
}

/// Of a pair the completion and the end are learned, and nothing else. A byte is a token at most, so the numbers are exact only by
/// the tokenizer itself: the two files differ in their prompts alone.
#[test]
fn the_loss_is_that_of_the_completions() {
    let files = Files::new();
    let short = files.write(
        "short.jsonl",
        "{\"prompt\": \"a\\n\", \"completion\": \"x y\"}\n".repeat(4),
    );
    let long = "{\"prompt\": \"much more is said before it\\n\", \"completion\": \"x y\"}\n";
    let long = files.write("long.jsonl", long.repeat(4));
    let learned = |data: &str, output: &str| {
        let output = files.path(output);
        let said = succeed(&[
            "--model",
            base(),
            "--output",
            &output,
            "--steps",
            "1",
            "--held-out",
            "0",
            "--sample",
            "0",
            data,
        ]);
        let (_, count) = said.split_once(" tokens, ").expect("a line about the data");
        count.split(' ').next().unwrap().parse::<usize>().unwrap()
    };
    let tokens = learned(&short, "a");
    assert_eq!(tokens, learned(&long, "b"));
    // At most three bytes and the end, at least one token and the end.
    assert!((8..=16).contains(&tokens), "{tokens}");
}

/// An adapter on chosen layers, with dropout, goes on from where it was saved.
#[test]
fn an_adapter_learns_and_goes_on() {
    let files = Files::new();
    let (data, [first, second]) = (
        files.pairs(),
        ["first", "second"].map(|name| files.path(name)),
    );
    let common = [
        "--model",
        base(),
        "--learning-rate",
        "5e-3",
        "--steps",
        "12",
        "--sample",
        "0",
        "--eval",
        &data,
    ];
    let own = [
        "--lora-rank",
        "4",
        "--lora-targets",
        "q_proj,down_proj",
        "--lora-dropout",
        "0.1",
    ];
    let said = succeed(&[&common[..], &own, &["--output", &first, &data]].concat());
    assert!(
        said.contains("LoRA of rank 4 on q_proj, down_proj"),
        "{said}"
    );
    let reached = figure(&said, "perplexity_after");
    let ratio = reached / figure(&said, "perplexity_before");
    assert!(ratio < 0.5, "{ratio}: {said}");
    let said = succeed(
        &[
            &common[..],
            &["--adapter", &first, "--output", &second, &data],
        ]
        .concat(),
    );
    let again = figure(&said, "perplexity_before");
    // Printed with three decimals.
    assert!((again - reached).abs() < 2e-3, "{again} for {reached}");
}

/// On a base of 4 bits, with all options of adapters, which its result has again.
#[test]
fn an_adapter_on_a_quantized_base_learns() {
    let files = Files::new();
    let (data, output) = (files.pairs(), files.path("out"));
    let own = [
        "--model",
        base(),
        "--output",
        &output,
        "--steps",
        "40",
        "--quantize",
        "nf4",
    ];
    let more = ["--dora", "--rslora", "--learning-rate", "4e-3", &data];
    let said = succeed(&[&own[..], &more].concat());
    assert!(
        said.contains(" parameters in f32 and nf4, DoRA of rank 16"),
        "{said}"
    );
    let (first, last) = (figure(&said, "loss_first"), figure(&said, "loss_last"));
    assert!(last < 0.6 * first, "{first} {last}");
    let options = fs::read(Path::new(&output).join("adapter_config.json")).unwrap();
    let options: serde_json::Value = serde_json::from_slice(&options).unwrap();
    assert_eq!(options["use_dora"], true);
    assert_eq!(options["use_rslora"], true);
    assert_eq!(options["target_modules"].as_array().unwrap().len(), 7);
}

/// All parameters, in half types with small moments; the result is a model that can be fine-tuned again.
#[test]
fn a_whole_model_is_trained_and_saved() {
    let files = Files::new();
    let (data, tuned) = (files.pairs(), files.path("tuned"));
    let said = succeed(&[
        "--full",
        "--dtype",
        "bf16",
        "--moments",
        "8bit",
        "--learning-rate",
        "3e-3",
        "--model",
        base(),
        "--output",
        &tuned,
        "--steps",
        "8",
        "--eval-every",
        "4",
        "--estimate",
        "--sample",
        "0",
        &data,
    ]);
    assert!(
        figure(&said, "perplexity_after") < figure(&said, "perplexity_before"),
        "{said}"
    );
    for words in [
        "in bf16, all of them trained",
        "after 4 updates: ",
        "after the first step: ",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let said = succeed(&[
        "--model",
        &tuned,
        "--output",
        &files.path("again"),
        "--steps",
        "1",
        "--sample",
        "4",
        &data,
    ]);
    assert!(
        Path::new(&files.path("again"))
            .join("adapter_model.safetensors")
            .exists(),
        "{said}"
    );
}

/// A budget cuts batches, and changes nothing but rounding. Losses of about 6 are printed with four decimals.
#[test]
fn a_budget_changes_no_loss() {
    let files = Files::new();
    let text = fs::read(demonstration().1.join("text.txt")).unwrap();
    // Whole lines, and so whole characters.
    let end = text[..8000].iter().rposition(|&byte| byte == b'\n');
    let data = files.write("text.md", &text[..end.expect("a line")]);
    let run = |output: &str, more: &[&str]| {
        let output = files.path(output);
        let own = [
            "--model",
            base(),
            "--output",
            &output,
            "--steps",
            "3",
            "--batch",
            "16",
            "--context",
            "96",
        ];
        succeed(&[&own[..], &["--sample", "0", &data], more].concat())
    };
    let whole = run("whole", &[]);
    let page = files.path("page.html");
    let cut = run(
        "cut",
        &[
            "--budget",
            "40MiB",
            "--recompute",
            "never",
            "--report",
            &page,
        ],
    );
    assert!(cut.contains(" micro-batches of "), "nothing was cut: {cut}");
    assert!(figure(&cut, "peak_over_budget") <= 1.05, "{cut}");
    for name in ["loss_first", "loss_last"] {
        let [whole, cut] = [&whole, &cut].map(|said| figure(said, name));
        assert!((whole - cut).abs() < 1e-3, "{name}: {whole} and {cut}");
    }
    assert!(
        fs::read_to_string(page)
            .unwrap()
            .contains("\"name\":\"loss\"")
    );
}
