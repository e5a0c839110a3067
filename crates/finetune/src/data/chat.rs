//! Conversations as the texts that a model has seen: its chat template renders them.
//!
//! A template is a program in Jinja, which transformers runs with some functions and Python's methods of texts, lists and tables besides.
//! minijinja runs it here, with the same. What is learned are the assistant's turns, to their end; what the template writes
//! between them is given.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value, context};
use regex_lite::{Captures, Regex};
use serde_json::Value as Json;
use serde_json::ser::{Formatter, Serializer};

/// The messages of a sample, each a table with `role` and `content`, and what else the template reads.
#[derive(Debug)]
pub struct Chat {
    pub messages: Vec<Value>,
    pub tools: Option<Value>,
}

/// A conversation as text, and the parts that are learned, in bytes.
#[derive(Debug, PartialEq)]
pub struct Rendered {
    pub text: String,
    pub learned: Vec<Range<usize>>,
}

/// A model's template.
pub struct Template {
    environment: Environment<'static>,
    /// The texts of special tokens, such as `bos_token`.
    tokens: Value,
}

/// The template's name in errors.
const NAME: &str = "chat_template";

impl Template {
    /// Reads `chat_template.jinja`, or the entry of `tokenizer_config.json`, which may be a list of named ones.
    pub fn open(folder: &Path) -> Result<Self> {
        let (file, config) = (
            folder.join("chat_template.jinja"),
            folder.join("tokenizer_config.json"),
        );
        let read = |path: &PathBuf| {
            let text = path.is_file().then(|| fs::read_to_string(path));
            let text = text.transpose();
            text.with_context(|| format!("cannot read {}", path.display()))
        };
        let settings = read(&config)?.map(|text| serde_json::from_str::<Json>(&text));
        let settings = settings.transpose();
        let settings = settings.with_context(|| format!("cannot read {}", config.display()))?;
        let settings = settings.unwrap_or_default();
        let entry = match &settings["chat_template"] {
            Json::Array(all) => {
                let default = all.iter().find(|named| named["name"] == "default");
                default.unwrap_or(&Json::Null)["template"].as_str()
            }
            one => one.as_str(),
        };
        let source = read(&file)?.or_else(|| entry.map(str::to_owned));
        let source = source.with_context(|| {
            format!(
                "{} has no chat template, in chat_template.jinja or tokenizer_config.json: take a model that was trained on conversations, or write `prompt` and `completion`",
                folder.display()
            )
        })?;
        Self::new(&source, &settings).with_context(|| folder.display().to_string())
    }

    fn new(source: &str, settings: &Json) -> Result<Self> {
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true);
        environment.set_syntax(syntax.build()?);
        environment.set_debug(true); // errors then know their places
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |text: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, text))
        });
        environment.add_filter("tojson", to_json);
        // Of minijinja, nothing is iterable too.
        environment.add_test("iterable", |value: &Value| {
            matches!(
                value.kind(),
                ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Iterable
            )
        });
        // transformers' own statement around what an assistant writes, which is found here by what the template adds.
        let generation = Regex::new(r"\{%(-?)\s*(end)?generation\s*(-?)%\}")?;
        let source = source.replace("\r\n", "\n");
        let source = generation.replace_all(&source, |found: &Captures<'_>| {
            let statement = found.get(2).map_or("if true", |_| "endif");
            format!("{{%{} {statement} {}%}}", &found[1], &found[3])
        });
        let compiled = environment.add_template_owned(NAME, source.into_owned());
        compiled.map_err(described)?;
        let tokens = settings.as_object().into_iter().flatten();
        let tokens = tokens.filter(|(name, _)| name.ends_with("_token"));
        let tokens = tokens.filter_map(|(name, token)| {
            let text = token.as_str().or_else(|| token["content"].as_str())?;
            Some((name, text))
        });
        let tokens = Value::from_pairs(tokens);
        Ok(Self {
            environment,
            tokens,
        })
    }

    /// Some messages as text; with `asks`, up to where the assistant's next answer begins.
    fn render(&self, chat: &Chat, messages: &[Value], asks: bool) -> Result<String> {
        let template = self.environment.get_template(NAME).map_err(described)?;
        let rendered = template.render(context! {
            messages => messages,
            tools => chat.tools.clone(),
            add_generation_prompt => asks,
            ..self.tokens.clone()
        });
        rendered.map_err(described)
    }

    /// The whole conversation as one text, if it has each answer as the model would be asked for it; else, or with `apart`, a text for each
    /// answer.
    pub fn texts(&self, chat: &Chat, apart: bool) -> Result<Vec<Rendered>> {
        let (mut all, messages) = (Vec::new(), &chat.messages);
        for (place, message) in messages.iter().enumerate() {
            let role = message.get_attr("role").ok();
            let role = role.as_ref().and_then(Value::as_str);
            let role = role.with_context(|| format!("message {} has no `role`", place + 1))?;
            if role != "assistant" {
                continue;
            }
            let asked = self.render(chat, &messages[..place], true)?;
            let text = self.render(chat, &messages[..=place], false)?;
            let answer = text.strip_prefix(&asked).with_context(|| {
                format!(
                    "the chat template does not write message {} as it asks for it: it asks with {:?}",
                    place + 1,
                    end_of(&asked)
                )
            })?;
            let learned = asked.len()..asked.len() + answer.len();
            ensure!(!learned.is_empty(), "message {} is empty", place + 1);
            all.push(Rendered {
                learned: vec![learned],
                text,
            });
        }
        let last = all.last().with_context(|| {
            "no message has the role `assistant`, so there is nothing to learn".to_owned()
        })?;
        let goes_on = all.iter().all(|part| last.text.starts_with(&part.text));
        if !apart && goes_on {
            let learned = all.iter().flat_map(|part| part.learned.clone()).collect();
            let text = last.text.clone();
            return Ok(vec![Rendered { text, learned }]);
        }
        Ok(all)
    }
}

/// What an error of a template says, with its line and column.
fn described(error: Error) -> anyhow::Error {
    let said = error.detail().map(str::to_owned);
    let said = said.unwrap_or_else(|| error.kind().to_string());
    let column = error
        .template_source()
        .zip(error.range())
        .map(|(text, range)| {
            let before = text.get(..range.start).unwrap_or_default();
            before.chars().rev().take_while(|c| *c != '\n').count() + 1
        });
    match (error.line(), column) {
        (Some(line), Some(column)) => {
            anyhow!("chat template, line {line}, column {column}: {said}")
        }
        (Some(line), None) => anyhow!("chat template, line {line}: {said}"),
        _ => anyhow!("chat template: {said}"),
    }
}

/// The last characters of a text.
fn end_of(text: &str) -> &str {
    let start = text.char_indices().rev().nth(39);
    &text[start.map_or(0, |(at, _)| at)..]
}

/// `tojson` as transformers has it: as Python writes JSON, and without escapes for HTML.
fn to_json(value: Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Letters that are not ASCII are written as they are in any case.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let failed = |error: serde_json::Error| {
        Error::new(ErrorKind::BadSerialization, "cannot be written as JSON").with_source(error)
    };
    if value.kind() == ValueKind::Undefined {
        return Err(Error::new(ErrorKind::UndefinedError, "tojson of nothing"));
    }
    let mut written = Vec::new();
    match indent {
        Some(width) => {
            let indent = " ".repeat(width);
            let pretty = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
            let mut serializer = Serializer::with_formatter(&mut written, pretty);
            serde::Serialize::serialize(&value, &mut serializer).map_err(failed)?;
        }
        None => {
            let mut serializer = Serializer::with_formatter(&mut written, Spaced);
            serde::Serialize::serialize(&value, &mut serializer).map_err(failed)?;
        }
    }
    Ok(Value::from_safe_string(
        String::from_utf8_lossy(&written).into_owned(),
    ))
}

/// Spaces after commas and colons.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        to: &mut W,
        is_first: bool,
    ) -> std::io::Result<()> {
        to.write_all(if is_first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        to: &mut W,
        is_first: bool,
    ) -> std::io::Result<()> {
        to.write_all(if is_first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        to: &mut W,
    ) -> std::io::Result<()> {
        to.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> Template {
        let settings = serde_json::json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}});
        Template::new(source, &settings).unwrap()
    }

    fn chat(messages: &str) -> Chat {
        let messages = serde_json::from_str(messages).unwrap();
        let tools = None;
        Chat { messages, tools }
    }

    fn learned(rendered: &Rendered) -> Vec<&str> {
        let parts = rendered.learned.iter();
        parts.map(|part| &rendered.text[part.clone()]).collect()
    }

    const PLAIN: &str = "{{ bos_token }}{% for message in messages %}\n<{{ message.role }}>\n{{ message['content'] | trim }}{{ eos_token }}\n{% endfor %}\n{% if add_generation_prompt %}\n<assistant>\n{% endif %}\n";
    const TWO: &str = r#"[{"role": "user", "content": " Peru? "}, {"role": "assistant", "content": "Lima."},
        {"role": "user", "content": "Chile?"}, {"role": "assistant", "content": "Santiago."}]"#;

    #[test]
    fn all_answers_of_a_conversation_are_learned_in_one_text() {
        let plain = template(PLAIN);
        let [whole] = &plain.texts(&chat(TWO), false).unwrap()[..] else {
            panic!("one text");
        };
        let expected = "<s><user>\nPeru?</s>\n<assistant>\nLima.</s>\n<user>\nChile?</s>\n<assistant>\nSantiago.</s>\n";
        assert_eq!(whole.text, expected);
        assert_eq!(learned(whole), ["Lima.</s>\n", "Santiago.</s>\n"]);

        let apart = plain.texts(&chat(TWO), true).unwrap();
        assert_eq!(apart.len(), 2);
        assert_eq!(learned(&apart[0]), ["Lima.</s>\n"]);
        assert_eq!(learned(&apart[1]), ["Santiago.</s>\n"]);
        assert_eq!(apart[1].text, expected);

        // What follows the last answer is not needed.
        let more = TWO.replace("]", r#", {"role": "user", "content": "Thanks."}]"#);
        assert_eq!(&plain.texts(&chat(&more), false).unwrap()[0], whole);
    }

    /// As Qwen3's: thoughts of former answers are not shown again.
    #[test]
    fn answers_that_are_shown_in_another_way_later_are_learned_apart() {
        let source = "{% for message in messages %}{% set content = message.content %}{% if not loop.last and '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip() %}{% endif %}{{ message.role }}: {{ content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
        let thoughtful = TWO.replace("Lima.", "<think>1</think> Lima.");
        let texts = template(source).texts(&chat(&thoughtful), false).unwrap();
        assert_eq!(learned(&texts[0]), ["<think>1</think> Lima.\n"]);
        assert_eq!(learned(&texts[1]), ["Santiago.\n"]);
        assert!(texts[1].text.contains("assistant: Lima.\n"));
    }

    #[test]
    fn what_templates_of_transformers_use() {
        let source = "{%- set ns = namespace(found=false) -%}{%- for m in messages if not ns.found -%}{%- if m.content is string and m.content.strip().startswith('Peru') -%}{%- set ns.found = true -%}{{ {'a': [1, 'ü<'], 'b': none} | tojson }}{%- continue -%}{%- endif -%}{%- endfor -%}{%- for m in messages[::-1] -%}{%- if loop.first -%}{%- generation -%}{{ m.content }}{%- endgeneration -%}{%- break -%}{%- endif -%}{%- endfor -%}{{ strftime_now is defined }}{{ messages | length }}";
        let rendered = template(source).render(&chat(TWO), &chat(TWO).messages, false);
        let expected = "{\"a\": [1, \"ü<\"], \"b\": null}Santiago.false4";
        assert_eq!(rendered.unwrap().to_lowercase(), expected.to_lowercase());
        let indented = template("{{ {'a': 1} | tojson(indent=4) }}");
        assert_eq!(
            indented.render(&chat("[]"), &[], false).unwrap(),
            "{\n    \"a\": 1\n}"
        );
    }

    #[track_caller]
    fn refused(source: &str, messages: &str, words: &str) {
        let settings = Json::Null;
        let texts = Template::new(source, &settings);
        let error = texts.and_then(|template| template.texts(&chat(messages), false));
        let error = format!("{:#}", error.unwrap_err());
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn what_cannot_be_learned() {
        let user = r#"[{"role": "user", "content": "Peru?"}]"#;
        let system = TWO.replacen("user", "system", 1);
        refused(PLAIN, user, "no message has the role `assistant`");
        refused(
            PLAIN,
            r#"[{"content": "Peru?"}]"#,
            "message 1 has no `role`",
        );
        let nothing = "{% for m in messages %}{{ m.content }}{% endfor %}";
        refused(nothing, &TWO.replace("Lima.", ""), "message 2 is empty");
        let strict = "{% for m in messages %}\n  {% if m.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}\n{% endfor %}";
        refused(
            strict,
            &system,
            "chat template, line 2, column 33: no system here",
        );
        refused("{% for m in %}", TWO, "chat template, line 1, column 13: ");
        refused(
            "a\n{{ messages | shuffled }}",
            TWO,
            "chat template, line 2, column 15: ",
        );
        refused(
            "{{ messages[0].content }}{{ add_generation_prompt }}",
            TWO,
            "does not write message 2 as it asks for it: it asks with",
        );
    }

    /// A conversation, and what transformers makes of it with a template; nothing if it refuses it.
    #[derive(serde::Deserialize)]
    struct Case {
        template: String,
        settings: Json,
        messages: Vec<Value>,
        tools: Option<Value>,
        add_generation_prompt: bool,
        text: Option<String>,
    }

    /// Started by scripts/compare-chat-templates.sh, with a folder of templates and cases.
    #[test]
    #[ignore = "needs templates of others"]
    fn as_transformers_renders_them() {
        let folder = PathBuf::from(std::env::var_os("HEADROOM_CHAT_TEMPLATES").unwrap());
        let cases = fs::read_to_string(folder.join("cases.json")).unwrap();
        let cases: Vec<Case> = serde_json::from_str(&cases).unwrap();
        let (mut same, mut differing) = (0, 0);
        for case in cases {
            let source = fs::read_to_string(folder.join(&case.template)).unwrap();
            let chat = Chat {
                messages: case.messages,
                tools: case.tools,
            };
            let ours = Template::new(&source, &case.settings)
                .and_then(|all| all.render(&chat, &chat.messages, case.add_generation_prompt));
            if ours.as_ref().ok() == case.text.as_ref() {
                same += 1;
            } else {
                differing += 1;
                println!("{}: {:?}", case.template, chat.messages);
                println!("  here {ours:?}\n  transformers {:?}", case.text);
            }
        }
        println!("figure: finetune/chats_as_transformers = {same} texts");
        println!("figure: finetune/chats_differing_from_transformers = {differing} texts");
        assert!(same > 0 && differing == 0);
    }
}
