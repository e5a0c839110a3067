use super::{Judged, Verdict};

/// What candle-core 0.11.1 does wrong on the CPU. A line is a verdict and an operation, for all of its cases, or for those in the
/// layouts that follow it, and only for those with a second consumer if `twice` does. All other cases are right.
const KNOWN: &str = "
wrong max_all: broadcast
wrong min_all: broadcast
wrong conv1d batch 1 length 7 kernel 3 padding 0 stride 1 dilation 1 groups 1: transposed
wrong conv1d batch 2 length 7 kernel 3 padding 0 stride 1 dilation 1 groups 1
wrong conv1d batch 2 length 7 kernel 3 padding 1 stride 1 dilation 1 groups 1
wrong conv1d batch 2 length 8 kernel 3 padding 1 stride 2 dilation 1 groups 1
wrong conv1d batch 2 length 8 kernel 3 padding 2 stride 1 dilation 2 groups 1
wrong conv1d batch 2 length 7 kernel 3 padding 1 stride 1 dilation 1 groups 2
wrong conv1d batch 2 length 5 kernel 1 padding 0 stride 1 dilation 1 groups 1
wrong avg_pool2d 2 of odd sizes
wrong max_pool2d 2
wrong max_pool2d 2x1
wrong max_pool2d 2 of odd sizes
wrong upsample_nearest1d 4 to 8: twice
wrong upsample_nearest2d 3x3 to 6x6: twice
wrong scatter 1: contiguous, narrowed
wrong scatter_add of the same size: contiguous, narrowed
wrong unfold 0 2 2
failing conv2d 5x4 kernel 3x3 padding 1 stride 2 dilation 1 groups 1
failing conv_transpose1d padding 0 output 0 stride 1 dilation 1 groups 1
failing conv_transpose1d padding 1 output 1 stride 2 dilation 1 groups 1
failing conv_transpose1d padding 0 output 0 stride 1 dilation 1 groups 2
failing avg_pool2d_with_stride 3 2
failing max_pool2d_with_stride 3 2
failing upsample_nearest1d 4 to 7
failing upsample_nearest1d 4 to 3
failing upsample_nearest2d 2x3 to 4x3
failing upsample_nearest2d 3x3 to 5x5
failing upsample_bilinear2d 2x3 to 4x5
failing upsample_bilinear2d 2x3 to 4x5 by corners
failing upsample_bilinear2d_with_scale 2 1.5
failing scatter_add 1: contiguous, narrowed
failing scatter_add 0: contiguous, narrowed
failing unfold 1 3 1
refused gather 0: transposed, broadcast
refused gather 1: transposed, broadcast
refused scatter 1: transposed, broadcast
refused scatter_add 1: transposed, broadcast
refused scatter_add 0: transposed, broadcast
refused scatter_add of the same size: transposed, broadcast
refused index_add 0: transposed, broadcast
refused index_add 1: transposed, broadcast
refused index_select 0: transposed, broadcast
refused index_select 1: transposed, broadcast
refused embedding: transposed, broadcast
refused flip: transposed, broadcast
";

/// What is otherwise on CUDA, without cuDNN.
const ON_CUDA: &str = "
refused upsample_nearest1d 4 to 8
refused upsample_nearest1d 4 to 7
refused upsample_nearest1d 4 to 3
refused conv_transpose1d padding 0 output 0 stride 1 dilation 1 groups 2: transposed
refused index_add 0: transposed, narrowed, broadcast
refused index_add 1: transposed, narrowed, broadcast
refused matmul: broadcast
refused mv: transposed, broadcast
";

/// The verdict on a case of this name on the CPU.
pub fn known(name: &str) -> Verdict {
    find(KNOWN, name).unwrap_or(Verdict::Right)
}

/// The verdict on a case of this name on CUDA.
pub fn known_on_cuda(name: &str) -> Verdict {
    find(ON_CUDA, name).unwrap_or_else(|| known(name))
}

/// Cases, by name, whose verdicts are not the known ones, and lines of the lists that match none of them or what another line does.
pub fn changes(judged: &[(String, Judged)], known: fn(&str) -> Verdict) -> Vec<String> {
    let changed = judged.iter().filter_map(|(name, judged)| {
        let (was, is) = (known(name), judged.verdict);
        let what = match (was, is) {
            (was, is) if was == is => return None,
            (_, Verdict::Right) => "candle has mended",
            (Verdict::Right, _) => "candle has broken",
            _ => "candle has changed",
        };
        let reason = &judged.reason;
        Some(format!("{what} {name} (was {was:?}, is {is:?}) {reason}"))
    });
    let names = || judged.iter().map(|(name, _)| name.as_str());
    let idle = [KNOWN, ON_CUDA].into_iter().flat_map(|list| {
        let is_idle = move |entry: &Entry| {
            let mut own = names().filter(|name| entry.matches(name)).peekable();
            let others = |name| entries(list).filter(|other| other.matches(name)).count() - 1;
            own.peek().is_none() || own.any(|name| others(name) > 0)
        };
        entries(list).filter(is_idle)
    });
    let idle = idle.map(|entry| format!("of no use, or twice: `{}`", entry.line));
    changed.chain(idle).collect()
}

fn find(list: &'static str, name: &str) -> Option<Verdict> {
    let mut found = entries(list).filter(|entry| entry.matches(name));
    found.next().map(|entry| entry.verdict)
}

struct Entry {
    line: &'static str,
    verdict: Verdict,
    operation: &'static str,
    cases: Vec<&'static str>,
}

impl Entry {
    fn matches(&self, name: &str) -> bool {
        let Some((operation, case)) = name.split_once(": ") else {
            return false;
        };
        let (layout, consumers) = case.split_once(", ").expect("layout and consumers");
        let mut layouts = self
            .cases
            .iter()
            .filter(|case| **case != "twice")
            .peekable();
        operation == self.operation
            && (layouts.peek().is_none() || layouts.any(|named| *named == layout))
            && (!self.cases.contains(&"twice") || consumers == "twice")
    }
}

fn entries(list: &'static str) -> impl Iterator<Item = Entry> {
    list.lines().filter(|line| !line.is_empty()).map(|line| {
        let (verdict, rest) = line.split_once(' ').expect("verdict and operation");
        let verdict = match verdict {
            "wrong" => Verdict::Wrong,
            "failing" => Verdict::Failing,
            "refused" => Verdict::Refused,
            other => panic!("`{other}` is no verdict"),
        };
        let (operation, cases) = rest.split_once(": ").unwrap_or((rest, ""));
        let cases = cases.split(", ").filter(|case| !case.is_empty());
        Entry {
            line,
            verdict,
            operation,
            cases: cases.collect(),
        }
    })
}
