//! Tokens by batches through a server on this machine, against the file that it serves: in the order of the file, and mixed within some blocks,
//! with a cache on disk that has them and without one. On the loopback, where the server takes a share of the same processors.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use candle_headroom::ByteSize;
use candle_headroom::data::{Dataset, Loader, Remote, TokenWindow, Tokens, stack_tokens};
use candle_headroom::error::BoxedError;
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};

use crate::server::Server;
use crate::support::{Contender, alternate, figure};
use crate::tokens::{SAMPLES, STRIDE, WINDOW, write};

/// Windows of 8 MiB of tokens; four blocks are mixed.
const BLOCK: usize = 4_096;
const MIXED: usize = 4;

/// Windows in an order of their own.
struct Ordered(Tokens, Vec<usize>);

impl Dataset for Ordered {
    type Sample = TokenWindow;

    fn len(&self) -> usize {
        self.1.len()
    }

    fn get(&self, index: usize) -> Result<TokenWindow, BoxedError> {
        self.0.get(self.1[index])
    }
}

fn open(path: &Path) -> Tokens {
    let tokens = Tokens::builder([path]).skip_header(0).window(WINDOW);
    tokens.stride(STRIDE).open().expect("tokens")
}

/// An epoch's batches. What was opened is closed after it, so that each epoch finds nothing in memory.
fn epoch(tokens: Tokens, order: &[usize]) -> Duration {
    let ordered = Ordered(tokens, order.to_vec());
    let began = Instant::now();
    let loader = Loader::builder(ordered, stack_tokens).batch(SAMPLES);
    for batch in loader.workers(1).build().expect("a loader") {
        black_box(batch.expect("a batch"));
    }
    began.elapsed()
}

pub fn compare(is_quick: bool) -> anyhow::Result<()> {
    let (bytes, rounds) = if is_quick {
        (1 << 27, 5)
    } else {
        (1 << 29, 11)
    };
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tokens.bin");
    write(&path, bytes)?;
    let server = Server::start();
    server.put("tokens.bin", std::fs::read(&path)?);
    let url = server.url("tokens.bin");
    let (path, url) = (path.as_path(), Path::new(&url));

    let in_order: Vec<_> = (0..open(path).len()).collect();
    let mut blocks: Vec<_> = in_order.chunks(BLOCK).collect();
    let mut random = StdRng::seed_from_u64(5);
    blocks.shuffle(&mut random);
    let mixed = blocks.chunks(MIXED).flat_map(|blocks| {
        let mut mixed = blocks.concat();
        mixed.shuffle(&mut random);
        mixed
    });
    let mixed: Vec<_> = mixed.collect();
    let remote = || Remote::new().memory(ByteSize::mib(64));
    let cache = folder.path().join("cache");
    let cached = || remote().cache(&cache, ByteSize::gib(2)).install();
    cached()?;
    epoch(open(url), &in_order);
    let batches = in_order.len() / SAMPLES;
    let mut worst = f64::INFINITY;
    for (name, order) in [("in order", &in_order), ("in blocks", &mixed)] {
        let direct = || epoch(open(path), order);
        let warm = || {
            cached().expect("settings");
            epoch(open(url), order)
        };
        let requested = || {
            remote().install().expect("settings");
            epoch(open(url), order)
        };
        let contenders = vec![
            Contender::timing_itself("direct", direct),
            Contender::timing_itself("cached", warm),
            Contender::timing_itself("requested", requested),
        ];
        let times = alternate(contenders, rounds);
        let title = format!("tokens {name}, {} MB, a batch of {SAMPLES}:", bytes >> 20);
        times.print(&title, batches);
        let name = name.replace(' ', "_");
        let cached = times.ratio("direct", "cached");
        figure(
            &format!("data/object_store_{name}_cached_vs_direct"),
            cached,
            "x",
        );
        let requested = times.ratio("direct", "requested");
        figure(
            &format!("data/object_store_{name}_requested_vs_direct"),
            requested,
            "x",
        );
        worst = worst.min(cached);
    }
    // Both orders, from the cache.
    figure("data/object_store_vs_direct", worst, "x");
    Ok(())
}
