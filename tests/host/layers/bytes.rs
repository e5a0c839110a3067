//! Bytes of known layers.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::layers::{FlameGraph, LayerMemory, LayerReport, RowKind};
use candle_headroom::nn::{Linear, Module, VarBuilder, VarMap, linear};
use tracing::trace_span;

use super::{row, watched};
use crate::support::alone;

/// Upper bound of what the test harness and a graph's nodes allocate meanwhile: a node of candle takes less than 1 KiB.
const NODES: i64 = 80 * 1024;

fn layer(from: usize, to: usize) -> Result<(VarMap, Linear)> {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let layer = linear(from, to, vb)?;
    Ok((varmap, layer))
}

fn assert_near(bytes: Option<i64>, expected: usize) {
    let bytes = bytes.expect("memory is counted");
    assert!(
        (bytes - expected as i64).abs() <= NODES,
        "{bytes}, not {expected}"
    );
}

/// The report of the step in which this layer kept the least, of several: a thread keeps 1 MiB from its first matrix product on, and any
/// step may be the first in which a thread takes part.
fn least<T>(layers: &LayerMemory, name: &str, step: impl Fn() -> Result<T>) -> (LayerReport, T) {
    let mut reports = Vec::new();
    for _ in 0..6 {
        let done = layers.measure(&step).unwrap();
        reports.push((layers.report(), done));
    }
    let least = reports
        .into_iter()
        .min_by_key(|(report, _)| row(report, name).held);
    least.unwrap()
}

#[test]
fn a_layer_holds_what_its_output_takes() {
    let _alone = alone();
    let (_varmap, up) = layer(64, 256).unwrap();
    let (_varmap, down) = layer(256, 64).unwrap();
    let x = Tensor::ones((1024, 64), DType::F32, &Device::Cpu).unwrap();
    watched(|layers| {
        let (mlp, inner) = (trace_span!("mlp"), trace_span!("up"));
        let forward = || -> Result<Tensor> {
            let _mlp = mlp.enter();
            let hidden = inner.in_scope(|| up.forward(&x))?.relu()?;
            down.forward(&hidden)
        };
        let (report, y) = least(layers, "mlp", forward);
        let (hidden, out) = (1024 * 256 * 4, 1024 * 64 * 4);
        assert_near(row(&report, "mlp.up").held, hidden);
        assert_near(row(&report, "mlp").held, 2 * hidden + out);
        assert_near(row(&report, "mlp").own_held, hidden + out);
        assert_near(
            row(&report, "mlp").at_peak.map(|bytes| bytes as i64),
            hidden + out,
        );
        assert!(row(&report, "mlp").highest >= row(&report, "mlp").held.map(|held| held as u64));
        let sum: u64 = report.rows.iter().filter_map(|row| row.at_peak).sum();
        assert_eq!(Some(sum), report.peak);
        drop(y);
        // Without gradients only the output is kept.
        let x = x.detach();
        let (up, down) = (detached(&up), detached(&down));
        let inference = || -> Result<Tensor> {
            let _mlp = mlp.enter();
            down.forward(&up.forward(&x)?.relu()?)
        };
        let (report, _y) = least(layers, "mlp", inference);
        assert_near(row(&report, "mlp").held, out);
        // Hidden, its relu and the output, until the end of the statement.
        assert_near(
            row(&report, "mlp").highest.map(|bytes| bytes as i64),
            2 * hidden + out,
        );
    });
}

fn detached(layer: &Linear) -> Linear {
    Linear::new(layer.weight().detach(), layer.bias().map(Tensor::detach))
}

#[test]
fn a_loop_of_ones_own_is_measured_to_its_peak() {
    let _alone = alone();
    watched(|layers| {
        let (varmap, up) = layer(64, 512).unwrap();
        let span = trace_span!("up");
        let x = Tensor::ones((1024, 64), DType::F32, &Device::Cpu).unwrap();
        let step = || -> Result<()> {
            let y = span.in_scope(|| up.forward(&x))?;
            let gradients = y.sqr()?.mean_all()?.backward()?;
            assert!(gradients.get(&varmap.all_vars()[0]).is_some());
            Ok(())
        };
        let (report, ()) = least(layers, "up", step);
        assert_near(row(&report, "up").held, 1024 * 512 * 4);
        let outside = row(&report, "outside of layers").at_peak.unwrap();
        // The square, and at least one gradient of that size.
        assert!(outside > 2 * 1024 * 512 * 4, "{outside}");
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<LayerReport>(&text).unwrap(), report);
    });
}

#[test]
fn what_was_held_at_the_peak_survives_later_frees() {
    const MIB: usize = 1 << 20;
    let _alone = alone();
    watched(|layers| {
        let [a, b, c] = [trace_span!("a"), trace_span!("b"), trace_span!("c")];
        layers.measure(|| {
            let first = a.in_scope(|| vec![1u8; MIB]);
            let second = b.in_scope(|| {
                let kept = vec![1u8; 2 * MIB];
                // For a moment.
                drop(std::hint::black_box(vec![1u8; MIB / 2]));
                kept
            });
            let third = c.in_scope(|| vec![1u8; MIB / 4]);
            drop((first, second, third));
            c.in_scope(|| drop(std::hint::black_box(vec![1u8; MIB])));
        });
        let report = layers.report();
        let at_peak = |name: &str| row(&report, name).at_peak.map(|bytes| bytes as i64);
        assert_near(at_peak("a"), MIB);
        assert_near(at_peak("b"), 2 * MIB + MIB / 2);
        assert_near(at_peak("c"), 0);
    });
}

/// Whatever is allocated and freed, the parts of the peak are the peak, and stay as they are until the use is higher.
#[test]
fn the_parts_sum_up_to_the_peak() {
    let _alone = alone();
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        (state >> 33) % below
    };
    let parts = |report: &LayerReport| -> BTreeMap<String, Option<u64>> {
        let rows = report.rows.iter();
        rows.map(|row| (row.name(), row.at_peak)).collect()
    };
    for _ in 0..20 {
        watched(|layers| {
            layers.measure(|| {
                let spans = [trace_span!("a"), trace_span!("b"), trace_span!("c")];
                spans.iter().for_each(|span| span.in_scope(|| {}));
                let (mut blocks, mut known) = (Vec::new(), LayerReport::default());
                for _ in 0..random(60) {
                    let (at, bytes) = (random(3) as usize, random(1 << 20) as usize);
                    match random(2) {
                        0 => drop(blocks.pop()),
                        _ => blocks.push(spans[at].in_scope(|| vec![1u8; bytes])),
                    }
                    let report = layers.report();
                    let sum: u64 = parts(&report).values().flatten().sum();
                    assert_eq!(Some(sum), report.peak);
                    if report.peak > known.peak {
                        known = report;
                    } else {
                        assert_eq!(report.peak, known.peak);
                        assert_eq!(parts(&report), parts(&known));
                    }
                }
            });
        });
    }
}

/// A line of folded stacks: the stack and its number.
fn split(line: &str) -> (&str, i64) {
    let (stack, count) = line.rsplit_once(' ').unwrap();
    (stack, count.parse().unwrap())
}

/// The number of this stack.
fn count(stacks: &str, stack: &str) -> i64 {
    let mut lines = stacks.lines().map(split);
    let found = lines.find(|(found, _)| *found == stack);
    found
        .unwrap_or_else(|| panic!("no `{stack}` in {stacks}"))
        .1
}

#[test]
fn texts_and_pictures_have_the_numbers() {
    let _alone = alone();
    watched(|layers| {
        let block = layers.measure(|| {
            let _model = trace_span!("model").entered();
            (0..2)
                .map(|_| trace_span!("bl;ock <1>").in_scope(|| vec![1u8; 8 << 20]))
                .collect::<Vec<_>>()
        });
        let report = layers.report();
        let text = report.to_string();
        assert!(
            text.contains("16.0 MiB") && text.contains("model.bl;ock <1>.*"),
            "{text}"
        );
        // What earlier tests have left may be the first row.
        let table = report.table(2);
        assert!(
            table.contains("8.0 MiB") && table.contains("more rows"),
            "{table}"
        );
        let stacks = report.flame_graph(FlameGraph::Bytes).unwrap();
        assert_near(Some(count(&stacks, "model;bl,ock <1>.0")), 8 << 20);
        let counts = stacks.lines().map(|line| split(line).1);
        assert_eq!(Some(counts.sum::<i64>() as u64), report.peak);
        let times = report.flame_graph(FlameGraph::Time).unwrap();
        assert!(count(&times, "model;bl,ock <1>.0") > 0, "{times}");
        assert_eq!(row(&report, "model").kind, RowKind::Layer);
        drop(block);
    });
}

/// A line of a flame graph's input that ends with two numbers would be a comparison of two runs.
#[test]
fn a_flame_graph_tells_names_with_numbers_apart() {
    let _alone = alone();
    watched(|layers| {
        let block = || vec![1u8; 1 << 20];
        let blocks = layers.measure(|| {
            (
                trace_span!("stage 1").in_scope(block),
                trace_span!("stage 2").in_scope(block),
                trace_span!("version 2.5").in_scope(block),
            )
        });
        let stacks = layers.report().flame_graph(FlameGraph::Bytes).unwrap();
        for name in ["stage 1", "stage 2", "version 2.5"] {
            let name = name.replace(' ', "\u{a0}");
            assert_near(Some(count(&stacks, &name)), 1 << 20);
        }
        drop(blocks);
    });
}
