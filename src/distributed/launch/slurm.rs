use super::variables::{Variables, wrong};
use crate::error::Result;

/// Ports for jobs that name none, below those that Linux gives to outgoing connections.
const PORTS: std::ops::Range<u64> = 20_000..30_000;

/// Where rank 0 of a Slurm step listens: on the first machine of the step, at a port that follows from the numbers of job and step.
pub(super) fn address(variables: &Variables) -> Result<Option<(String, u16)>> {
    let names = [
        "SLURM_STEP_NODELIST",
        "SLURM_JOB_NODELIST",
        "SLURM_NODELIST",
    ];
    let Some((name, list)) = names
        .iter()
        .find_map(|name| Some((name, variables.text(name)?)))
    else {
        return Ok(None);
    };
    let host = first_host(&list).ok_or_else(|| {
        wrong(format!(
            "{name}={list} is not understood: set MASTER_ADDR and MASTER_PORT to a name or address of rank 0's machine and a free port there"
        ))
    })?;
    let number = |name| {
        let text = variables.text(name).unwrap_or_default();
        text.parse::<u64>().unwrap_or_default()
    };
    let (job, step) = (number("SLURM_JOB_ID"), number("SLURM_STEP_ID"));
    let count = PORTS.end - PORTS.start;
    let port = PORTS.start + (job % count * 31 + step % count) % count;
    Ok(u16::try_from(port).ok().map(|port| (host, port)))
}

/// The first name of a list such as `gpu[003-005,9]-ib,login`.
fn first_host(list: &str) -> Option<String> {
    let mut depth = 0;
    let end = list.find(|letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    });
    let mut rest = list.get(..end.unwrap_or(list.len()))?;
    let mut host = String::new();
    while let Some((before, after)) = rest.split_once('[') {
        let (inside, after) = after.split_once(']')?;
        let first = inside.split([',', '-']).next()?;
        host.push_str(before);
        host.push_str(first);
        rest = after;
    }
    host.push_str(rest);
    let is_name = !host.is_empty() && !host.contains([']', ',', ' ']);
    is_name.then_some(host)
}

#[cfg(test)]
mod tests {
    use super::first_host;

    #[test]
    fn the_first_host_of_a_list() {
        let lists = [
            ("node1", "node1"),
            ("a,b", "a"),
            ("node[001-003,007]", "node001"),
            ("gpu[9,12]-ib,login", "gpu9-ib"),
            ("r[1-2]n[03-04]", "r1n03"),
        ];
        for (list, first) in lists {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
        for list in ["", "node[1", ",a", "a]"] {
            assert_eq!(first_host(list), None, "{list}");
        }
    }
}
