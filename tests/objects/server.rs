//! A server of objects that misbehaves on command: HTTP with ranges and ETags, and as much of S3's API as checkpoints need. Signatures are not
//! checked.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What is wrong with an answer.
#[derive(Debug, Clone, PartialEq)]
#[allow(dead_code, reason = "the benchmark's server works")]
pub enum Fault {
    /// The connection ends before the answer.
    NoAnswer,
    /// The connection ends after this many bytes of the content.
    CutAfter(usize),
    /// The content lacks its last bytes, and the stated length says so.
    Shorter(usize),
    /// `Content-Length` states this many bytes more than come.
    StatesMore(usize),
    /// The whole object, in place of a range.
    Whole,
    /// A range one byte further on.
    OtherRange,
    /// Another total length in `Content-Range`, or of the object when its header is asked for.
    OtherLength,
    /// The object was replaced: this answer and those after it have other bytes and another ETag.
    Replaced,
    /// Nothing comes for this long.
    Slow(Duration),
    Status(u16),
    /// A redirect to the same object under another name, with a secret.
    Redirect,
}

#[derive(Debug, Default, Clone)]
struct Object {
    bytes: Arc<Vec<u8>>,
    version: usize,
    etag: Option<String>,
    requests: Vec<String>,
    faults: Vec<(usize, Fault)>,
}

impl Object {
    fn etag(&self) -> String {
        let own = || format!("\"{:x}-{}\"", self.bytes.len(), self.version);
        self.etag.clone().unwrap_or_else(own)
    }
}

type Objects = Arc<Mutex<BTreeMap<String, Object>>>;

#[derive(Clone)]
pub struct Server {
    address: SocketAddr,
    objects: Objects,
}

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let objects = Objects::default();
        let of = Arc::clone(&objects);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let objects = Arc::clone(&of);
                // A client that ends the connection is no error of the server's.
                thread::spawn(move || serve(&stream, &objects));
            }
        });
        Self { address, objects }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// Stores an object, without faults.
    pub fn put(&self, path: &str, bytes: Vec<u8>) {
        store(&mut self.objects.lock().unwrap(), path, bytes);
    }

    #[allow(dead_code, reason = "the benchmark's server works")]
    pub fn set_etag(&self, path: &str, etag: &str) {
        let mut objects = self.objects.lock().unwrap();
        objects.get_mut(path).expect("an object").etag = Some(etag.to_owned());
    }

    /// Lets the requests for an object fail: each by its number from now on.
    #[allow(dead_code, reason = "the benchmark's server works")]
    pub fn fail(&self, path: &str, faults: impl IntoIterator<Item = (usize, Fault)>) {
        let mut objects = self.objects.lock().unwrap();
        let object = objects.entry(path.to_owned()).or_default();
        object.requests.clear();
        object.faults = faults.into_iter().collect();
    }

    /// The requests for an object since the last call of `fail`: the method and the range.
    #[allow(dead_code, reason = "the benchmark counts none")]
    pub fn requests(&self, path: &str) -> Vec<String> {
        let objects = self.objects.lock().unwrap();
        objects
            .get(path)
            .map_or(Vec::new(), |it| it.requests.clone())
    }

    /// The objects whose names begin so.
    #[allow(dead_code, reason = "the benchmark writes nothing")]
    pub fn names(&self, prefix: &str) -> Vec<String> {
        let objects = self.objects.lock().unwrap();
        let there = objects.iter().filter(|(_, object)| object.version > 0);
        let names = there.map(|(name, _)| name.clone());
        names.filter(|name| name.starts_with(prefix)).collect()
    }

    #[allow(dead_code, reason = "the benchmark writes nothing")]
    pub fn get(&self, path: &str) -> Vec<u8> {
        self.objects.lock().unwrap()[path].bytes.to_vec()
    }
}

/// What comes in the place of an object: some of its bytes are others.
pub fn replaced(bytes: &[u8]) -> Vec<u8> {
    let mut other = bytes.to_vec();
    other.iter_mut().step_by(97).for_each(|byte| *byte = !*byte);
    other
}

fn store(objects: &mut BTreeMap<String, Object>, path: &str, bytes: Vec<u8>) {
    let object = objects.entry(path.to_owned()).or_default();
    object.bytes = Arc::new(bytes);
    object.version += 1;
}

struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

fn read(stream: &mut BufReader<&TcpStream>) -> Option<Request> {
    let mut line = || {
        let mut line = String::new();
        let read = stream.read_line(&mut line).ok()?;
        (read > 0).then(|| line.trim_end().to_owned())
    };
    let first = line()?;
    let mut words = first.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let query = query.split('&').filter(|it| !it.is_empty()).map(|it| {
        let (key, value) = it.split_once('=').unwrap_or((it, ""));
        (key.to_owned(), value.replace("%2F", "/"))
    });
    let (path, query) = (path.trim_start_matches('/').to_owned(), query.collect());
    let mut headers = BTreeMap::new();
    loop {
        let line = line()?;
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let len = headers
        .get("content-length")
        .map_or(0, |len| len.parse().unwrap());
    let mut body = vec![0; len];
    stream.read_exact(&mut body).ok()?;
    Some(Request {
        method,
        path,
        query,
        headers,
        body,
    })
}

fn serve(stream: &TcpStream, objects: &Objects) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let request = read(&mut reader)?;
        let path = request
            .path
            .split_once("!secret")
            .map_or(&*request.path, |(path, _)| path);
        let (mut object, fault) = {
            let mut objects = objects.lock().unwrap();
            let object = objects.entry(path.to_owned()).or_default();
            let number = object.requests.len();
            let range = request.headers.get("range").map_or("", String::as_str);
            let (method, query) = (&request.method, &request.query);
            let query: Vec<_> = query.keys().map(String::as_str).collect();
            let shown = format!("{method} {range}{}", query.join("&"));
            object.requests.push(shown.trim_end().to_owned());
            let fault = object.faults.iter().find(|(at, _)| *at == number);
            let fault = fault.map(|(_, fault)| fault.clone());
            if fault == Some(Fault::Replaced) {
                let other = replaced(&object.bytes);
                store(&mut objects, path, other);
            }
            (objects[path].clone(), fault)
        };
        match fault {
            Some(Fault::NoAnswer) => return None,
            Some(Fault::Slow(time)) => thread::sleep(time),
            Some(Fault::Redirect) => {
                let location = format!("/{path}!secret?Signature=hunter2");
                respond(
                    stream,
                    307,
                    &[("Location", location)],
                    &[],
                    0,
                    usize::MAX,
                    false,
                )?;
                continue;
            }
            Some(Fault::Status(status)) => {
                let text = b"invalid token: Bearer hunter2 <Error><AWSAccessKeyId>hunter2</AWSAccessKeyId></Error>";
                let is_head = request.method == "HEAD";
                respond(stream, status, &[], text, text.len(), usize::MAX, is_head)?;
                continue;
            }
            _ => {}
        }
        if request.method != "GET" && request.method != "HEAD"
            || request.query.contains_key("list-type")
        {
            let (status, headers, body) = write(&request, objects);
            respond(
                stream,
                status,
                &headers,
                &body,
                body.len(),
                usize::MAX,
                false,
            )?;
            continue;
        }
        if object.version == 0 {
            respond(stream, 404, &[], &[], 0, usize::MAX, false)?;
            continue;
        }
        let etag = object.etag();
        if request
            .headers
            .get("if-match")
            .is_some_and(|asked| *asked != etag)
        {
            respond(stream, 412, &[], &[], 0, usize::MAX, false)?;
            continue;
        }
        let mut headers = vec![
            ("ETag", etag),
            ("Last-Modified", "Sat, 01 Jan 2022 00:00:00 GMT".to_owned()),
        ];
        if object.etag.as_deref() == Some("") {
            headers.remove(0);
        }
        let len = object.bytes.len();
        let range = request
            .headers
            .get("range")
            .filter(|_| fault != Some(Fault::Whole));
        let range = range.map(|range| {
            let (start, end) = range
                .strip_prefix("bytes=")
                .unwrap()
                .split_once('-')
                .unwrap();
            (
                start.parse::<usize>().unwrap(),
                len.min(end.parse::<usize>().unwrap() + 1),
            )
        });
        let (status, (mut start, mut end)) = (
            if range.is_some() { 206 } else { 200 },
            range.unwrap_or((0, len)),
        );
        let mut total = len;
        match fault {
            Some(Fault::OtherRange) if range.is_some() => {
                (start, end) = (start + 1, (end + 1).min(len))
            }
            Some(Fault::OtherLength) => {
                total += 1;
                if range.is_none() {
                    object.bytes = Arc::new([&object.bytes[..], b"x"].concat());
                    end += 1;
                }
            }
            _ => {}
        }
        if range.is_some() {
            headers.push((
                "Content-Range",
                format!("bytes {start}-{}/{total}", end - 1),
            ));
        }
        let mut body = &object.bytes[start..end];
        let (mut stated, mut cut) = (body.len(), usize::MAX);
        match fault.filter(|_| request.method != "HEAD") {
            Some(Fault::CutAfter(bytes)) => cut = bytes,
            Some(Fault::Shorter(less)) => {
                body = &body[..body.len().saturating_sub(less)];
                stated = body.len();
            }
            Some(Fault::StatesMore(more)) => stated += more,
            _ => {}
        }
        respond(
            stream,
            status,
            &headers,
            body,
            stated,
            cut,
            request.method == "HEAD",
        )?;
    }
}

fn respond(
    mut stream: &TcpStream,
    status: u16,
    headers: &[(&str, String)],
    body: &[u8],
    stated: usize,
    cut: usize,
    is_head: bool,
) -> Option<()> {
    let mut head = format!("HTTP/1.1 {status} Status\r\nContent-Length: {stated}\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all((head + "\r\n").as_bytes()).ok()?;
    if is_head {
        return Some(());
    }
    stream.write_all(&body[..body.len().min(cut)]).ok()?;
    // A length that was a lie, or a cut, ends the connection.
    (cut == usize::MAX && stated == body.len()).then_some(())
}

type Answer = (u16, Vec<(&'static str, String)>, Vec<u8>);

/// What changes objects, and what lists them.
fn write(request: &Request, objects: &Objects) -> Answer {
    let mut objects = objects.lock().unwrap();
    let (path, query) = (&request.path, &request.query);
    let ok = |body: String| (200, Vec::new(), body.into_bytes());
    match request.method.as_str() {
        "PUT" => {
            let name = match (query.get("uploadId"), query.get("partNumber")) {
                (Some(id), Some(part)) => {
                    format!("{path}#{id}#{:05}", part.parse::<u32>().unwrap())
                }
                _ => path.clone(),
            };
            store(&mut objects, &name, request.body.clone());
            (200, vec![("ETag", objects[&name].etag())], Vec::new())
        }
        "POST" if query.contains_key("uploads") => {
            let id = objects.entry(path.clone()).or_default().requests.len();
            ok(format!(
                "<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
            ))
        }
        "POST" if query.contains_key("uploadId") => {
            let parts = format!("{path}#{}#", query["uploadId"]);
            let names = objects.keys().filter(|name| name.starts_with(&parts));
            let names: Vec<_> = names.cloned().collect();
            let bytes = names
                .iter()
                .flat_map(|name| objects.remove(name).unwrap().bytes.to_vec());
            let bytes: Vec<u8> = bytes.collect();
            store(&mut objects, path, bytes);
            ok(
                "<CompleteMultipartUploadResult><ETag>\"e\"</ETag></CompleteMultipartUploadResult>"
                    .to_owned(),
            )
        }
        "POST" if query.contains_key("delete") => {
            let text = String::from_utf8(request.body.clone()).unwrap();
            let keys = text.split("<Key>").skip(1);
            let mut deleted = String::new();
            for key in keys.map(|rest| rest.split('<').next().unwrap()) {
                let bucket = path.trim_end_matches('/');
                // Its faults stay.
                let object = objects.entry(format!("{bucket}/{key}")).or_default();
                object.version = 0;
                deleted += &format!("<Deleted><Key>{key}</Key></Deleted>");
            }
            ok(format!("<DeleteResult>{deleted}</DeleteResult>"))
        }
        "DELETE" => {
            objects.retain(|name, _| name != path && !name.starts_with(&format!("{path}#")));
            (204, Vec::new(), Vec::new())
        }
        "GET" => {
            let bucket = path.trim_end_matches('/');
            let prefix = query.get("prefix").map_or("", String::as_str);
            let (mut text, mut folders) = (String::new(), Vec::new());
            for (name, object) in objects.iter().filter(|(_, object)| object.version > 0) {
                let key = name
                    .strip_prefix(bucket)
                    .and_then(|it| it.strip_prefix('/'));
                let Some(rest) = key.and_then(|key| key.strip_prefix(prefix)) else {
                    continue;
                };
                match rest.split_once('/') {
                    Some((folder, _)) => folders.push(format!("{prefix}{folder}/")),
                    None => {
                        text += &format!(
                            "<Contents><Key>{prefix}{rest}</Key><LastModified>2022-01-01T00:00:00.000Z</LastModified><ETag>{}</ETag><Size>{}</Size></Contents>",
                            object.etag(),
                            object.bytes.len()
                        );
                    }
                }
            }
            folders.dedup();
            for folder in folders {
                text += &format!("<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>");
            }
            ok(format!("<ListBucketResult>{text}</ListBucketResult>"))
        }
        _ => (405, Vec::new(), Vec::new()),
    }
}
