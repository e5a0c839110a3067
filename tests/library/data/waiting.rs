//! How long training waited for data is shown where people look.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::data::{Dataset, Loader};
use candle_headroom::error::BoxedError;
use candle_headroom::{AdaptiveTrainer, Monitor, Sgd, Timeline};

/// Of a sample. A batch has two of them, so a step may take as long on a busy machine.
const READING: Duration = Duration::from_millis(150);

/// Takes a while for each sample.
struct Slow;

impl Dataset for Slow {
    type Sample = Tensor;

    fn len(&self) -> usize {
        6
    }

    fn get(&self, _: usize) -> Result<Tensor, BoxedError> {
        thread::sleep(READING);
        Ok(Tensor::ones(4, DType::F32, &Device::Cpu)?)
    }
}

#[test]
fn reports_timelines_and_monitors_show_it() {
    let builder = Monitor::builder().interval(Duration::from_millis(10));
    let monitor = Arc::new(builder.start().unwrap());
    let var = Var::ones(4, DType::F32, &Device::Cpu).unwrap();
    let optimizer = Sgd::builder(vec![var.clone()]).build().unwrap();
    let timeline = Timeline::new();
    let host = monitor.sources().len() - 1;
    assert_eq!(monitor.latest()[host].data_wait, None);
    let builder = AdaptiveTrainer::builder(optimizer).observer(timeline.clone());
    let builder = builder.observer(Arc::clone(&monitor));
    let mut trainer = builder.build().unwrap();
    let stack = |samples: Vec<Tensor>| Ok(Tensor::stack(&samples, 0)?);
    for batch in Loader::builder(Slow, stack).batch(2).build().unwrap() {
        let batch = batch.unwrap();
        let report = trainer
            .step(&batch, |x, _| x.broadcast_mul(&var)?.mean_all())
            .unwrap();
        assert_eq!(report.waited, Some(batch.waited));
        assert!(batch.waited >= READING, "{:?}", batch.waited);
        let text = report.to_string();
        assert!(
            text.contains(", waited ") && text.contains(" ms for data"),
            "{text}"
        );
    }
    let samples = monitor.history(host);
    let waited: Vec<_> = samples.iter().filter_map(|one| one.data_wait).collect();
    let most = waited.iter().max();
    assert!(
        most.is_some_and(|share| (50..=100).contains(share)),
        "{most:?}"
    );
    // A wait that is longer than the time between two samples is not lost: the reading of the second batch shows while the third is read.
    let full = waited.iter().filter(|share| **share >= 99).count();
    assert!(full >= 10, "{waited:?}");

    let mut page = Vec::new();
    timeline.write_page("slow data", &mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    let json = page
        .split("id=\"data\">")
        .nth(1)
        .unwrap()
        .split("</script>")
        .next()
        .unwrap();
    let record: serde_json::Value = serde_json::from_str(json).unwrap();
    let waited: Vec<_> = record["steps"]["waited"]
        .as_array()
        .unwrap()
        .iter()
        .map(|value| value.as_f64().unwrap())
        .collect();
    assert_eq!(waited.len(), 3);
    assert!(
        waited
            .iter()
            .all(|microseconds| *microseconds >= READING.as_micros() as f64),
        "{waited:?}"
    );
    let phases = record["totals"]["phases"].as_array().unwrap();
    let load = phases
        .iter()
        .find(|total| total["phase"] == "load")
        .unwrap();
    assert_eq!(load["count"], 3);
    assert!((load["time"].as_f64().unwrap() - waited.iter().sum::<f64>()).abs() < 1e3);
    let mut trace = Vec::new();
    timeline.write_trace(&mut trace).unwrap();
    assert!(
        String::from_utf8(trace)
            .unwrap()
            .contains("\"name\":\"load\"")
    );

    // A batch of the user's own waited for nothing.
    let own = Tensor::ones((2, 4), DType::F32, &Device::Cpu).unwrap();
    let report = trainer
        .step(&own, |x, _| x.broadcast_mul(&var)?.mean_all())
        .unwrap();
    assert_eq!(report.waited, None);
    assert!(!report.to_string().contains("waited"));
}
