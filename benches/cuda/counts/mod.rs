//! What steps ask of the driver: launches, calls, allocations, copies, events, waits. These numbers do not depend on the machine.
//!
//! `cargo bench --features cuda,layers --bench cuda -- --counts [--write]`, on the simulated driver, which only allocates then: the
//! program starts itself again so. It fails where a count is above the one in counts.tsv; `--write` writes that file anew.

mod block;
mod bytes;
mod driver;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::optim::{Commit, ParamsAdamW};
use candle_headroom::{AdamW, DeviceMemory, nn};
use candle_nn::Optimizer;

use crate::layers::{LLAMA, LanguageModels, Layer, plain_attention, sum, var};
use crate::llama::{Composition, Lean, Llama, TINY_15M};
use crate::support::parameters::{Parameters, transformer};
use driver::Counts;

/// The transformer with an event for each use of a tensor.
const WITH_EVENTS: &str = "language_model_with_events";

/// Whether `--counts` asks for counts in the place of times.
pub fn are_asked_for() -> bool {
    std::env::args().any(|argument| argument == "--counts")
}

/// Prints the bytes of kernels, which have to be executed for that, and starts this program again with a driver of 1 TiB that computes
/// nothing. Returns whether this is the process that counts.
fn only_allocates() -> candle_headroom::Result<bool> {
    const VARIABLES: [(&str, &str); 2] = [
        ("SIMULATED_CUDA_MODE", "allocate"),
        ("SIMULATED_CUDA_MEMORY", "1099511627776"),
    ];
    let is_set = |(name, value): &(&str, &str)| std::env::var(name).is_ok_and(|it| it == *value);
    if VARIABLES.iter().all(is_set) {
        return Ok(true);
    }
    bytes::print()?;
    let program = std::env::current_exe().map_err(candle_core::Error::wrap)?;
    let mut again = Command::new(program);
    again.args(std::env::args_os().skip(1)).envs(VARIABLES);
    let status = again.status().map_err(candle_core::Error::wrap)?;
    std::process::exit(status.code().unwrap_or(1));
}

/// The counts of one part of a step, in the order of the tables.
type Numbers = Vec<(&'static str, u64)>;

fn numbers(counts: &Counts, nodes: Option<usize>) -> Numbers {
    let (adds, scalar_adds) = counts.launches_of("badd_");
    let (products, product_bytes) = counts.products();
    let (copies, copied) = counts.copies();
    let nodes = nodes.map(|nodes| ("graph_nodes", nodes as u64));
    let others = [
        ("launches", counts.get("launches.count")),
        (
            "launches_of_one_element",
            counts.get("launches.one_element"),
        ),
        ("adds", adds),
        ("scalar_adds", scalar_adds),
        ("products", products),
        ("driver_calls", counts.get("calls.count")),
        (
            "allocations",
            counts.get("allocations.pool.count") + counts.get("allocations.direct.count"),
        ),
        ("memsets", counts.get("memsets.count")),
        ("copies", copies),
        ("events_recorded", counts.get("events.recorded")),
        ("events_waited_for", counts.get("events.waited_for")),
        ("host_waits", counts.get("synchronizations.count")),
        ("launch_bytes", counts.get("launches.bytes")),
        ("product_bytes", product_bytes),
        ("copied_bytes", copied),
    ];
    nodes.into_iter().chain(others).collect()
}

/// An optimizer of one of the two kinds.
enum Update {
    Ours(Box<AdamW>),
    Candles(candle_nn::AdamW),
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Ours,
    Candles,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Candles => "candle",
        }
    }

    /// As this crate's trainers compute gradients, or as candle does.
    fn backward(self, loss: &Tensor) -> Result<GradStore> {
        match self {
            Self::Ours => nn::backward(loss),
            Self::Candles => loss.backward(),
        }
    }

    fn update(self, vars: Vec<Var>) -> candle_headroom::Result<Update> {
        Ok(match self {
            Self::Ours => Update::Ours(Box::new(AdamW::builder(vars).build()?)),
            Self::Candles => Update::Candles(candle_nn::AdamW::new(vars, ParamsAdamW::default())?),
        })
    }
}

impl Update {
    fn run(&mut self, gradients: &GradStore) -> candle_headroom::Result<()> {
        match self {
            Self::Ours(optimizer) => optimizer.commit(gradients).map(drop),
            Self::Candles(optimizer) => Ok(optimizer.step(gradients)?),
        }
    }
}

/// Which Vars AdamW updates.
#[derive(Clone, Copy)]
enum Trained<'a> {
    Nothing,
    All,
    /// The input is a Var so that its gradient is asked for, as in the middle of a model.
    AllBut(&'a Tensor),
}

impl Trained<'_> {
    fn has(self, var: &Tensor) -> bool {
        match self {
            Self::Nothing => false,
            Self::All => true,
            Self::AllBut(input) => var.id() != input.id(),
        }
    }
}

/// What was counted, by case, kind and count.
#[derive(Default)]
struct Table(BTreeMap<(String, &'static str, &'static str), u64>);

impl Table {
    fn add(&mut self, case: &str, kind: Kind, counts: &Counts, nodes: Option<usize>) {
        println!("{case}, {}", kind.name());
        for (name, number) in numbers(counts, nodes) {
            println!("  {name:<24} {number:>16}");
            self.0.insert((case.to_owned(), kind.name(), name), number);
        }
        println!("  driver calls by function");
        for (name, calls) in counts.functions().iter().take(8) {
            println!("    {name:<48} {calls:>6}");
        }
        println!("  kernels: launches, of which of one element, and bytes");
        let kernels = counts.kernels();
        for (name, count, single, bytes) in kernels.iter().take(12) {
            println!("    {name:<48} {count:>6} {single:>6} {bytes:>16}");
        }
        if kernels.len() > 12 {
            let rest: u64 = kernels[12..].iter().map(|(_, count, ..)| count).sum();
            println!("    {:<48} {rest:>6}", "others");
        }
    }

    /// The loss forward and backward, and a step of AdamW on all Vars but the input. Each has run once before.
    fn step(
        &mut self,
        case: &str,
        kind: Kind,
        trained: Trained,
        loss: &dyn Fn() -> Result<Tensor>,
    ) -> candle_headroom::Result<()> {
        let warm = loss()?;
        let vars = warm.sorted_nodes().into_iter();
        let vars = vars.filter(|node| node.is_variable() && trained.has(node));
        let vars = vars.map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
        let is_updated = !vars.is_empty();
        let mut update = is_updated.then(|| kind.update(vars)).transpose()?;
        let gradients = kind.backward(&warm)?;
        if let Some(update) = &mut update {
            update.run(&gradients)?;
        }
        drop((warm, gradients));

        let mut nodes = 0;
        let (gradients, counts) = Counts::of(|| -> Result<_> {
            let loss = loss()?;
            let recorded = loss.sorted_nodes().into_iter();
            nodes = recorded.filter(|node| !node.is_variable()).count();
            let gradients = kind.backward(&loss)?;
            // Without an update they are freed here.
            Ok(is_updated.then_some(gradients))
        });
        self.add(case, kind, &counts, Some(nodes));
        if let Some((gradients, update)) = gradients?.zip(update.as_mut()) {
            let (updated, counts) = Counts::of(|| {
                let updated = update.run(&gradients);
                drop(gradients);
                updated
            });
            updated?;
            self.add(&format!("{case}_update"), kind, &counts, None);
        }
        Ok(())
    }

    /// A step of AdamW without a model.
    fn update(
        &mut self,
        case: &str,
        kind: Kind,
        device: &Device,
        shapes: &[Vec<usize>],
    ) -> candle_headroom::Result<()> {
        let parameters = Parameters::on(device, shapes)?;
        let mut update = kind.update(parameters.vars)?;
        update.run(&parameters.gradients)?;
        let (updated, counts) = Counts::of(|| update.run(&parameters.gradients));
        updated?;
        self.add(case, kind, &counts, None);
        Ok(())
    }

    fn get(&self, case: &str, count: &'static str) -> f64 {
        self.0[&(case.to_owned(), Kind::Ours.name(), count)] as f64
    }

    fn print_figures(&self) {
        let figure = |name: &str, number: f64, unit: &str| {
            println!("figure: cuda/{name} = {number:.1} {unit}");
        };
        let model = |count| self.get("language_model", count);
        for (case, name) in [
            ("language_model", "driver_calls_per_recorded_op"),
            (WITH_EVENTS, "driver_calls_per_recorded_op_with_events"),
        ] {
            let calls = self.get(case, "driver_calls") / self.get(case, "graph_nodes");
            figure(name, calls, "calls");
        }
        figure("add_launches_10m", model("adds"), "launches");
        figure("scalar_add_launches_10m", model("scalar_adds"), "launches");
        figure("graph_nodes_10m", model("graph_nodes"), "nodes");
        let waits = model("host_waits") + self.get("language_model_update", "host_waits");
        figure("host_waits_per_step", waits, "waits");
        let chained = self.get("chain_64", "driver_calls") - self.get("chain_32", "driver_calls");
        figure("driver_calls_per_chained_op", chained / 32., "calls");
        // Attention alone has the same sum behind it.
        let but_scalar_adds = |case| self.get(case, "launches") - self.get(case, "scalar_adds");
        let attention = but_scalar_adds("llama_attention");
        let name = "launches_llama_layer_forward_backward";
        let all = self.get("llama_layer", "launches");
        figure(&format!("{name}_total"), all, "launches");
        figure(name, but_scalar_adds("llama_layer") - attention, "launches");
        let (case, name) = ("attention_2e20", "launches_attention_layer_2e20");
        figure(name, self.get(case, "launches"), "launches");
        let grouped = self.get("attention_2e20_grouped", "launches");
        figure(&format!("{name}_grouped"), grouped, "launches");
        let bytes = self.get(case, "launch_bytes") + self.get(case, "product_bytes");
        figure(&format!("{name}_gigabytes"), bytes / 1e9, "GB");
    }

    fn as_text(&self) -> String {
        let mut text = String::from("case\tof\tcount\tnumber\n");
        for ((case, kind, count), number) in &self.0 {
            _ = writeln!(text, "{case}\t{kind}\t{count}\t{number}");
        }
        text
    }

    /// Compares with the committed counts. Returns whether none has risen.
    fn compare(&self, expected: &str) -> bool {
        let mut expected: BTreeMap<_, u64> = expected
            .lines()
            .skip(1)
            .filter_map(|line| line.rsplit_once('\t'))
            .filter_map(|(name, number)| Some((name.to_owned(), number.parse().ok()?)))
            .collect();
        let (mut risen, mut fallen) = (0, 0);
        for ((case, kind, count), now) in &self.0 {
            match expected.remove(&format!("{case}\t{kind}\t{count}")) {
                Some(before) if *now > before => {
                    risen += 1;
                    println!("risen: {case}, {kind}, {count}: {now}, expected {before}");
                }
                Some(before) if *now < before => {
                    fallen += 1;
                    println!("fallen: {case}, {kind}, {count}: {now}, expected {before}");
                }
                Some(_) => {}
                None => {
                    risen += 1;
                    println!("new: {case}, {kind}, {count}: {now}");
                }
            }
        }
        for name in expected.keys() {
            fallen += 1;
            println!("gone: {}", name.replace('\t', ", "));
        }
        if risen + fallen > 0 {
            println!("to take the new counts: --bench cuda -- --counts --write");
        }
        risen == 0
    }
}

/// Prints all counts, their figures, and what differs from the committed ones. Ends the program with status 1 where one has risen.
pub fn print() -> candle_headroom::Result<()> {
    if !driver::is_simulated() {
        println!("skipped: counts need the simulated driver");
        return Ok(());
    }
    if !only_allocates()? {
        return Ok(());
    }
    let memory = DeviceMemory::cuda(0).open()?;
    let device = memory.device();
    let mut table = Table::default();
    llama2_c(&mut table, device)?;
    llama_layer(&mut table, device)?;
    let models = LanguageModels::new(device, LanguageModels::LARGE)?;
    let case = "language_model";
    let bytes = &models.bytes;
    table.step(case, Kind::Ours, Trained::All, &|| {
        models.ours.loss(bytes, bytes)
    })?;
    table.step(case, Kind::Candles, Trained::All, &|| {
        models.plain.loss(bytes, bytes)
    })?;
    drop(models);
    resnet_block(&mut table, device)?;
    chains(&mut table, device)?;
    let sets = [
        ("adamw_transformer", transformer(50_257, 1024, 768, 12)),
        ("adamw_many_small", vec![vec![4096]; 1000]),
    ];
    for (case, shapes) in sets {
        table.update(case, Kind::Ours, device, &shapes)?;
        table.update(case, Kind::Candles, device, &shapes)?;
    }
    drop(memory);
    let memory = DeviceMemory::cuda(0).event_tracking(true).open()?;
    let models = LanguageModels::new(memory.device(), LanguageModels::LARGE)?;
    table.step(WITH_EVENTS, Kind::Ours, Trained::All, &|| {
        models.ours.loss(&models.bytes, &models.bytes)
    })?;
    table.print_figures();

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/cuda/counts.tsv");
    if std::env::args().any(|argument| argument == "--write") {
        std::fs::write(path, table.as_text()).map_err(candle_core::Error::wrap)?;
        return Ok(());
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    if !table.compare(&expected) {
        std::process::exit(1);
    }
    Ok(())
}

/// Four texts of 256 tokens.
fn llama2_c(table: &mut Table, device: &Device) -> candle_headroom::Result<()> {
    let (samples, time) = (4, TINY_15M.time);
    let tokens = |shift: usize| {
        let tokens = (0..samples * time).map(|i| ((i + shift) * 31 % 31_991) as u32);
        Tensor::from_iter(tokens, device)?.reshape((samples, time))
    };
    let (x, y) = (tokens(0)?, tokens(1)?);
    let model = Llama::on(device, TINY_15M)?;
    table.step("llama2_c", Kind::Ours, Trained::All, &|| {
        model.loss_without_scores::<Lean>(&x, &y)
    })?;
    table.step("llama2_c", Kind::Candles, Trained::All, &|| {
        model.loss::<Composition>(&x, &y)
    })
}

/// One layer of Llama-3-8B in bf16, its attention alone, its attention of eight texts, and LoRA on the layer.
fn llama_layer(table: &mut Table, device: &Device) -> candle_headroom::Result<()> {
    let tokens = LLAMA.tokens;
    let x = var(device, &[1, tokens, LLAMA.width])?;
    let layer = Layer::new(device, &LLAMA)?;
    let case = "llama_layer";
    table.step(case, Kind::Ours, Trained::Nothing, &|| {
        sum(layer.forward(&x)?)
    })?;
    table.step(case, Kind::Candles, Trained::Nothing, &|| {
        sum(layer.forward_plain(&x)?)
    })?;

    // The second with the 1 GiB of scores at a time that a large card has room for, and with keys of their own for all heads.
    for (case, samples, key_heads, chunk) in [
        ("llama_attention", 1, LLAMA.key_heads, 256 << 20),
        ("attention_2e20", 8, LLAMA.heads, 1 << 30),
        ("attention_2e20_grouped", 8, LLAMA.key_heads, 256 << 20),
    ] {
        let heads = |heads| var(device, &[samples, heads, tokens, LLAMA.head()]);
        let (q, k, v) = (heads(LLAMA.heads)?, heads(key_heads)?, heads(key_heads)?);
        let causal = nn::Attention::default().causal().chunk(chunk);
        // As it lies in memory.
        table.step(case, Kind::Ours, Trained::Nothing, &|| {
            sum(nn::attention(&q, &k, &v, &causal)?.transpose(1, 2)?)
        })?;
        // For 2^32 scores candle asks for a launch of more blocks than fit into 32 bits, which the driver refuses.
        if samples == 1 {
            table.step(case, Kind::Candles, Trained::Nothing, &|| {
                sum(plain_attention(&q, &k, &v)?)
            })?;
        }
    }

    let layer = layer.with_adapters(16)?;
    let case = "llama_layer_lora";
    table.step(case, Kind::Ours, Trained::AllBut(&x), &|| {
        sum(layer.forward(&x)?)
    })?;
    table.step(case, Kind::Candles, Trained::AllBut(&x), &|| {
        sum(layer.forward_plain(&x)?)
    })?;

    let layer = layer.with_quantized_base()?;
    let case = "llama_layer_qlora";
    table.step(case, Kind::Ours, Trained::AllBut(&x), &|| {
        sum(layer.forward(&x)?)
    })
}

fn resnet_block(table: &mut Table, device: &Device) -> candle_headroom::Result<()> {
    let x = block::images(device)?;
    let ours = block::Ours::new(device)?;
    table.step("resnet_block", Kind::Ours, Trained::AllBut(&x), &|| {
        sum(ours.forward(&x)?)
    })?;
    let candles = block::Candles::new(device)?;
    table.step("resnet_block", Kind::Candles, Trained::AllBut(&x), &|| {
        sum(candles.forward(&x)?)
    })
}

/// Operations on a small vector, one after the other: what the graph itself costs.
fn chains(table: &mut Table, device: &Device) -> candle_headroom::Result<()> {
    type Silu = fn(&Tensor) -> Result<Tensor>;
    let kinds: [(Kind, Silu); 2] = [(Kind::Ours, nn::ops::silu), (Kind::Candles, Tensor::silu)];
    let x = Var::zeros(4096, DType::F32, device)?.into_inner();
    for (kind, silu) in kinds {
        for (case, length) in [("chain_32", 32), ("chain_64", 64)] {
            table.step(case, kind, Trained::Nothing, &|| {
                (0..length).try_fold(x.clone(), |x, _| silu(&x))?.sum_all()
            })?;
        }
    }
    Ok(())
}
