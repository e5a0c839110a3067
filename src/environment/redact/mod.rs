//! Taking out what identifies a machine or a person.

use std::borrow::Cow;
use std::fmt;

mod scan;

use scan::{is_system, paths, program_names, uuids, whole_words};

use super::finding::Finding;
use super::report::Gpu;
use super::source::Source;

/// Words to be taken out, each with what is put in its place. They are what must not be shown, so `Debug` does not show them either.
#[derive(Clone)]
pub(super) struct Words(Vec<(String, &'static str)>);

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Words({})", self.0.len())
    }
}

/// Everybody's names, and names that are words of this report.
const PUBLIC: [&str; 10] = [
    "root",
    "user",
    "localhost",
    "nvidia",
    "cuda",
    "docker",
    "ubuntu",
    "linux",
    "admin",
    "candle",
];

/// The names of user and host, and the folders that variables name: as they stand there, since a path may hold spaces or be relative.
/// Names that are everybody's, and short ones, which are parts of other words, stay.
pub(super) fn private_words(source: &Source) -> Words {
    let named = [
        ("USER", "<user>"),
        ("LOGNAME", "<user>"),
        ("SUDO_USER", "<user>"),
        ("USERNAME", "<user>"),
        ("HOSTNAME", "<host>"),
    ];
    let named = named
        .into_iter()
        .filter_map(|(name, instead)| Some((source.variable(name)?.to_owned(), instead)));
    let home = source
        .variable("HOME")
        .and_then(|home| home.trim_end_matches('/').rsplit('/').next());
    let host = source.line("/proc/sys/kernel/hostname");
    let names = named
        .chain(home.map(|name| (name.to_owned(), "<user>")))
        .chain(host.map(|name| (name, "<host>")))
        .filter(|(word, _)| word.len() > 2 && !PUBLIC.contains(&word.as_str()));
    let lists = [
        "HOME",
        "CUDA_HOME",
        "CUDA_PATH",
        "CUDA_ROOT",
        "CUDA_TOOLKIT_ROOT_DIR",
        "LD_LIBRARY_PATH",
        "PATH",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
    ];
    let folders = lists
        .into_iter()
        .filter_map(|name| source.variable(name))
        .flat_map(|list| list.split([':', ';']));
    let folders = folders
        .map(|folder| folder.trim_end_matches('/'))
        .filter(|folder| folder.len() > 2 && !is_system(folder) && !PUBLIC.contains(folder))
        .map(|folder| (folder.to_owned(), "<path>"));
    let mut words: Vec<_> = names.chain(folders).collect();
    // A folder before what it lies in, and paths before names in them.
    words.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
    words.dedup();
    Words(words)
}

pub(super) fn apply(gpus: &mut [Gpu], findings: &mut [Finding], words: &Words) {
    let Words(mut words) = words.clone();
    for gpu in gpus {
        if let Some(serial) = gpu.serial.replace("<serial>".to_owned()) {
            words.push((serial, "<serial>"));
        } else {
            gpu.serial = None;
        }
        gpu.uuid = gpu.uuid.as_deref().map(uuids);
    }
    for finding in findings {
        finding.seen = text(&finding.seen, &words);
        for part in [
            &mut finding.leads_to,
            &mut finding.next_step,
            &mut finding.command,
        ] {
            // What is borrowed is the code's own text, and holds nothing of the machine's.
            if let Cow::Owned(owned) = part {
                *owned = text(owned, &words);
            }
        }
    }
}

fn text(text: &str, words: &[(String, &'static str)]) -> String {
    let replace = |text: String, folders: bool| {
        let words = words
            .iter()
            .filter(|(word, instead)| !word.is_empty() && (*instead == "<path>") == folders);
        words.fold(text, |text, (word, instead)| {
            whole_words(&text, word, instead)
        })
    };
    // Folders first, while they are whole; names last, so that they are found wherever they are left.
    let text = replace(text.to_owned(), true);
    replace(program_names(&paths(&uuids(&text))), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_identifies_is_taken_out() {
        let words = vec![
            ("alice".to_owned(), "<user>"),
            ("1650423".to_owned(), "<serial>"),
        ];
        for (before, after) in [
            ("GPU-1b2c3d4e-0001-0002-0003-0123456789ab", "GPU-<uuid>"),
            (
                "CUDA_VISIBLE_DEVICES=GPU-1b2c3d,0",
                "CUDA_VISIBLE_DEVICES=GPU-<uuid>,0",
            ),
            ("uuid 1b2c3d4e-0001-0002-0003-0123456789ab.", "uuid <uuid>."),
            ("CUDA_HOME=/home/alice/cuda", "CUDA_HOME=<path>"),
            (
                "/home/bob/lib/libcudart.so.12 is 12.4",
                "<path>/libcudart.so.12 is 12.4",
            ),
            (
                "no /dev/nvidia0, /usr/local/cuda/lib64",
                "no /dev/nvidia0, /usr/local/cuda/lib64",
            ),
            ("asked by alice, not malice", "asked by <user>, not malice"),
            ("board 1650423", "board <serial>"),
            (
                "pid=7, name=secret-project, fault",
                "pid=7, name=<name>, fault",
            ),
            (
                "pid=7, name=my secret project, fault",
                "pid=7, name=<name>, fault",
            ),
            ("name=the last one", "name=<name>"),
            ("/run/media/bob/x and /usr/local/acme", "<path> and <path>"),
            ("/usr/local/cuda-secret/lib64", "<path>"),
            ("/usr/local/cuda-12.4/lib64", "/usr/local/cuda-12.4/lib64"),
            (
                "4 of 16 lanes, 12.5 GiB and/or 3",
                "4 of 16 lanes, 12.5 GiB and/or 3",
            ),
        ] {
            assert_eq!(text(before, &words), after);
            assert_eq!(text(after, &words), after, "twice is the same");
        }
    }

    #[test]
    fn names_and_folders_are_taken_from_all_that_tells_them() {
        let root =
            std::env::temp_dir().join(format!("candle-headroom-redact-{}", std::process::id()));
        std::fs::create_dir_all(root.join("proc/sys/kernel")).unwrap();
        std::fs::write(root.join("proc/sys/kernel/hostname"), "node17\n").unwrap();
        let mut source = Source::of_this_process();
        source.root = root.clone();
        source.variables = [
            ("USER", "nvidia"),
            ("HOME", "/home/bob"),
            ("CUDA_HOME", "/srv/bob s own/cuda"),
            ("CUDA_PATH", "toolkits/acme"),
            ("PATH", "/usr/local/cuda/bin:/usr/bin"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        let Words(words) = private_words(&source);
        std::fs::remove_dir_all(root).unwrap();
        for (before, after) in [
            ("CUDA_HOME=/srv/bob s own/cuda", "CUDA_HOME=<path>"),
            (
                "CUDA_HOME: /srv/bob s own/cuda, PATH",
                "CUDA_HOME: <path>, PATH",
            ),
            ("CUDA_PATH=toolkits/acme", "CUDA_PATH=<path>"),
            ("bob on node17", "<user> on <host>"),
            (
                "/sys/module/nvidia and nvidia-smi",
                "/sys/module/nvidia and nvidia-smi",
            ),
            ("/usr/local/cuda/bin/nvcc", "/usr/local/cuda/bin/nvcc"),
        ] {
            assert_eq!(text(before, &words), after);
            assert_eq!(text(after, &words), after, "twice is the same");
        }
    }
}
