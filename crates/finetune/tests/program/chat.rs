//! Conversations: learned in the model's own format, or refused with what is wrong.

use std::fs;
use std::path::Path;

use super::refused::refused;
use super::{Files, base, copy, figure, succeed};

/// A model that knows this chat template.
fn model(files: &Files, template: &str) -> String {
    let model = files.path("model");
    copy(base(), &model);
    let settings = serde_json::json!({"chat_template": template, "eos_token": "\n"});
    let path = Path::new(&model).join("tokenizer_config.json");
    fs::write(path, settings.to_string()).unwrap();
    model
}

const TEMPLATE: &str = "{% for message in messages %}{% if message.role not in ['user', 'assistant'] %}{{ raise_exception('a role that is not known: ' ~ message.role) }}{% endif %}\n{{ message.role }}: {{ message.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

fn conversations(files: &Files) -> String {
    let line = |i: usize| {
        let word = ["tensor", "memory", "batch", "layer"][i % 4];
        format!(
            r#"{{"messages": [{{"role": "user", "content": "the {word}"}}, {{"role": "assistant", "content": "is a {word}"}}, {{"role": "user", "content": "and"}}, {{"role": "assistant", "content": "no {word}"}}]}}"#
        ) + "\n"
    };
    files.write("chat.jsonl", (0..24).map(line).collect::<String>())
}

/// The number of samples and of tokens to learn.
fn data(said: &str) -> (usize, usize) {
    let line = said.lines().find(|line| line.starts_with("data: "));
    let words = line.unwrap().split_whitespace();
    let numbers: Vec<usize> = words.filter_map(|word| word.parse().ok()).collect();
    (numbers[0], numbers[2])
}

#[test]
fn answers_are_learned_in_the_models_format() {
    let files = Files::new();
    let (model, chats) = (model(&files, TEMPLATE), conversations(&files));
    let (output, single) = (files.path("out"), files.path("single"));
    let options = [
        "--learning-rate",
        "4e-3",
        "--held-out",
        "0",
        "--steps",
        "40",
    ];
    let run = |output: &str, data: &str, more: &[&str]| {
        let fixed = ["--model", &model, "--output", output, data];
        succeed(&[&fixed[..], &options, more].concat())
    };
    let said = run(&output, &chats, &["--sample", "0"]);
    assert!(
        figure(&said, "loss_last") < 0.3 * figure(&said, "loss_first"),
        "{said}"
    );
    let (samples, learned) = data(&said);
    assert_eq!(samples, 24);
    // The result has the template beside it.
    let kept = fs::read_to_string(Path::new(&output).join("tokenizer_config.json"));
    assert!(kept.unwrap().contains("raise_exception"));

    // The same answers, each after all that was said before.
    let pairs = fs::read_to_string(&chats).unwrap();
    let pairs = pairs.lines().flat_map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let said = |at: usize| {
            let message = &line["messages"][at];
            let text = |name: &str| message[name].as_str().unwrap().to_owned();
            format!("{}: {}\n", text("role"), text("content"))
        };
        let texts = [said(0), said(1), said(2), said(3)];
        [1, 3].map(|at| {
            let prompt = texts[..at].concat() + "assistant: ";
            let completion = texts[at].trim_start_matches("assistant: ").trim_end();
            serde_json::json!({"prompt": prompt, "completion": completion}).to_string() + "\n"
        })
    });
    let pairs = files.write("pairs.jsonl", pairs.collect::<String>());
    let (of_pairs, tokens) = data(&run(&single, &pairs, &["--sample", "0"]));
    assert_eq!(of_pairs, 48);
    // A pair learns the token that ends a text; here it is the template's end of a turn.
    assert_eq!(tokens, learned);

    // What is longer than the context is cut into its answers.
    let short = files.path("short");
    let said = run(&short, &chats, &["--context", "14", "--sample", "0"]);
    assert_eq!(data(&said), (48, learned), "{said}");
    assert!(said.contains("prompts without their beginning"), "{said}");
}

#[test]
fn conversations_that_cannot_be_learned() {
    let files = Files::new();
    let chats = conversations(&files);
    let output = files.path("out");
    let with = |model: &str, data: &str, words: &str| {
        refused(&["--model", model, "--output", &output, data], &[], words);
        assert!(
            !Path::new(&output)
                .join("adapter_model.safetensors")
                .exists()
        );
    };
    with(
        base(),
        &chats,
        "has no chat template, in chat_template.jinja or tokenizer_config.json",
    );
    let own = model(&files, TEMPLATE);
    let line = |messages: &str| {
        let good = fs::read_to_string(&chats).unwrap();
        files.write("bad.jsonl", format!("{good}{{\"messages\": {messages}}}\n"))
    };
    let bad = line("[]");
    with(&own, &bad, "line 25: `messages` is empty");
    let bad = line(r#"[{"role": "user", "content": "a"}]"#);
    with(&own, &bad, "sample 25 of ");
    with(
        &own,
        &bad,
        "no message has the role `assistant`, so there is nothing to learn",
    );
    let bad = line(r#"[{"role": "tool", "content": "a"}, {"role": "assistant", "content": "b"}]"#);
    with(&own, &bad, "chat template, line 1, column ");
    with(&own, &bad, ": a role that is not known: tool");
    let bad = line(r#"[{"role": "user", "content": "a"}], "text": "b""#);
    with(
        &own,
        &bad,
        "line 25: there must be `messages`, `prompt` and `completion`, or `text` alone",
    );
    fs::write(Path::new(&own).join("chat_template.jinja"), "a\n{% for %}").unwrap();
    with(&own, &chats, "chat template, line 2, column 8: ");
    fs::remove_file(Path::new(&own).join("chat_template.jinja")).unwrap();
    fs::write(Path::new(&own).join("tokenizer_config.json"), "{").unwrap();
    with(&own, &chats, "tokenizer_config.json");
}
