//! Models of the hub: a server on this machine stands in for it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use super::refused::refused;
use super::{Files, base, command, copy, text};

/// A model of the hub is taken from its cache without a network; what is not there is an error that says what to do.
#[test]
fn the_hub_without_a_network() {
    let files = Files::new();
    let (data, output, home) = (files.pairs(), files.path("out"), files.path("home"));
    let variables = [("HF_HOME", &*home), ("HF_ENDPOINT", "http://127.0.0.1:9")];
    let own = [
        "--model",
        "someone/tiny",
        "--output",
        &output,
        "--steps",
        "1",
        "--sample",
        "0",
        &data,
    ];
    refused(&own, &variables, "cannot download someone/tiny at main");
    let offline = [&own[..], &["--offline"]].concat();
    refused(
        &offline,
        &variables,
        "someone/tiny at main is not in the hub's cache",
    );

    let repository = Path::new(&home).join("hub/models--someone--tiny");
    fs::create_dir_all(repository.join("refs")).unwrap();
    fs::write(repository.join("refs/main"), "0123abc").unwrap();
    fs::create_dir_all(repository.join("snapshots")).unwrap();
    copy(
        base(),
        repository.join("snapshots/0123abc").to_str().unwrap(),
    );
    let run = command(&own).envs(variables).output().unwrap();
    assert!(run.status.success(), "{}", text(&run));
    let options = fs::read_to_string(Path::new(&output).join("adapter_config.json")).unwrap();
    assert!(options.contains("\"someone/tiny\""), "{options}");
}

/// The first run downloads the model; the second one needs no server.
#[test]
fn a_model_is_downloaded_once() {
    let files = Files::new();
    let (data, home) = (files.pairs(), files.path("home"));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            serve(stream.unwrap());
        }
    });
    for (output, endpoint, more) in [
        ("first", &*endpoint, &[][..]),
        ("second", "http://127.0.0.1:9", &["--offline"]),
    ] {
        let output = files.path(output);
        let own = [
            "--model",
            "someone/tiny",
            "--output",
            &output,
            "--steps",
            "1",
            "--sample",
            "0",
            &data,
        ];
        let mut run = command(&[&own[..], more].concat());
        let run = run
            .envs([("HF_HOME", &*home), ("HF_ENDPOINT", endpoint)])
            .output()
            .unwrap();
        assert!(run.status.success(), "{}", text(&run));
    }
    let missing = files.path("missing");
    let own = ["--model", "someone/other", "--output", &missing, &data];
    let variables = [("HF_HOME", &*home), ("HF_ENDPOINT", &*endpoint)];
    refused(&own, &variables, "cannot download someone/other at main");
}

/// What a hub says is not believed: a part of a model is a file of its folder, and a token goes over no open line.
#[test]
fn a_hub_gets_no_token_in_the_clear_and_names_no_other_files() {
    let files = Files::new();
    let (data, home, output) = (files.pairs(), files.path("home"), files.path("out"));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (sender, requests) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let request = request(&stream);
            let is_index = request[0].contains("model.safetensors.index.json");
            let _ = sender.send(request.clone());
            match is_index {
                true => {
                    let index = br#"{"weight_map": {"a": "../../../../outside.safetensors"}}"#;
                    answer(&mut stream, &request, "index", index);
                }
                false => respond(&mut stream, &request),
            }
        }
    });
    // Where Python's programs keep a token.
    fs::create_dir_all(&home).unwrap();
    fs::write(Path::new(&home).join("token"), "hf_stored").unwrap();
    let own = ["--model", "someone/tiny", "--output", &output, &data];
    let variables = [
        ("HF_HOME", &*home),
        ("HF_ENDPOINT", &*endpoint),
        ("HF_TOKEN", "hf_given"),
    ];
    let words = "`../../../../outside.safetensors` is not a file of this folder";
    refused(&own, &variables, words);
    let requests: Vec<Vec<String>> = requests.try_iter().collect();
    assert!(requests.len() > 2, "{requests:?}");
    let mut lines = requests.iter().flatten();
    assert!(lines.all(|line| !line.contains("hf_")), "{requests:?}");
    assert!(
        !requests.iter().any(|lines| lines[0].contains("outside")),
        "{requests:?}"
    );
}

/// Answers one request for a part of a file, as the hub does.
fn serve(mut stream: TcpStream) {
    let lines = request(&stream);
    respond(&mut stream, &lines);
}

fn request(stream: &TcpStream) -> Vec<String> {
    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
    lines
        .map_while(Result::ok)
        .take_while(|line| !line.is_empty())
        .collect()
}

fn respond(stream: &mut TcpStream, lines: &[String]) {
    let path = lines[0].split(' ').nth(1).unwrap().to_owned();
    let file = path.strip_prefix("/someone/tiny/resolve/main/");
    let content = file.and_then(|file| fs::read(Path::new(base()).join(file)).ok());
    let Some(content) = content else {
        return write!(
            stream,
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
    };
    answer(stream, lines, &file.unwrap().replace('.', "-"), &content);
}

fn answer(stream: &mut TcpStream, lines: &[String], etag: &str, content: &[u8]) {
    let range = lines.iter().find_map(|line| {
        line.to_lowercase()
            .strip_prefix("range: bytes=")
            .map(str::to_owned)
    });
    let (first, last) = range
        .as_deref()
        .unwrap_or("0-")
        .split_once('-')
        .map(|(first, last)| {
            (
                first.parse().unwrap(),
                last.parse().unwrap_or(content.len() - 1),
            )
        })
        .unwrap();
    let part: &[u8] = &content[first..=last];
    write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {first}-{last}/{}\r\nETag: \"{etag}\"\r\nx-repo-commit: 0123abc\r\nConnection: close\r\n\r\n",
        part.len(),
        content.len()
    )
    .unwrap();
    stream.write_all(part).unwrap();
}
