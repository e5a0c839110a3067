use super::{Facts, Findings, code};
use crate::environment::probe::launch::LAUNCHERS;

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    let source = &*facts.source;
    let mut wrong = Vec::new();
    let [torchrun, open_mpi, pmi, slurm] = LAUNCHERS.each_ref().map(|launcher| {
        let place = launcher.place(source);
        place.unwrap_or_else(|problem| {
            // Slurm sets one variable without the other for what runs outside its steps.
            let is_problem = launcher.name != "Slurm";
            wrong.extend(is_problem.then_some(problem));
            None
        })
    });
    // srun starts one torchrun for each node, so that its numbers are others.
    if let (Some((rank, size)), Some((other_rank, other_size))) = (torchrun, open_mpi)
        && (rank, size) != (other_rank, other_size)
    {
        let one = format!("RANK={rank} of WORLD_SIZE={size}");
        let other = format!("OMPI_COMM_WORLD_RANK={other_rank} of {other_size}");
        wrong.push(format!("{one}, but {other}"));
    }
    let is_alone = [open_mpi, pmi, slurm].iter().all(Option::is_none);
    if torchrun.is_some_and(|(_, size)| size > 1) && is_alone {
        let missing = ["MASTER_ADDR", "MASTER_PORT"].into_iter();
        let missing = missing.filter(|name| source.variable(name).is_none_or(str::is_empty));
        wrong.extend(missing.map(|name| format!("RANK and WORLD_SIZE without {name}")));
    }
    if let Some(port) = source
        .variable("MASTER_PORT")
        .filter(|_| torchrun.is_some())
        && !port.trim().parse::<u16>().is_ok_and(|port| port > 0)
    {
        wrong.push(format!("MASTER_PORT=`{port}` is not a port"));
    }
    if !wrong.is_empty() {
        findings.add(code::LAUNCH, wrong.join("; "));
    }
    local_rank(facts, findings);
}

/// The first launcher that tells the rank on this node is the one that counts.
fn local_rank(facts: &Facts, findings: &mut Findings) {
    let mut names = LAUNCHERS.iter().map(|launcher| launcher.local);
    let told = names.find_map(|name| Some((name, facts.source.variable(name)?)));
    let visible = facts.visible_gpus();
    if let Some((name, value)) = told
        && let Ok(rank) = value.trim().parse::<usize>()
        && visible > 0
        && rank >= visible
    {
        let seen = format!("{name}={value}, GPUs that are visible: {visible}");
        findings.add(code::LOCAL_RANK, seen);
    }
}
