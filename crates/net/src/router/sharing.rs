//! Who shares state with whom, and whose tasks have to heed it.

use super::core::Router;

/// Groups of elements that share state, of two or more that packets go through.
pub(super) fn groups(router: &Router) -> Vec<Vec<usize>> {
    let mut group_of: Vec<usize> = (0..router.len()).collect();
    for element in 0..router.len() {
        let others = router.slots[element].enter(0).map(|slot| slot.shares()).unwrap_or_default();
        for other in others.into_iter().filter(|other| *other < router.len()) {
            let (from, to) = (group_of[element].max(group_of[other]), group_of[element].min(group_of[other]));
            group_of.iter_mut().filter(|group| **group == from).for_each(|group| *group = to);
        }
    }
    let members = |group: usize| -> Vec<usize> {
        let has_packets = |element: &usize| !router.wiring.inputs[*element].is_empty();
        (0..router.len()).filter(|element| group_of[*element] == group).filter(has_packets).collect()
    };
    (0..router.len()).map(members).filter(|members| members.len() > 1).collect()
}

/// Whether an element pulls packets through one of a group and sends them to another: given whom it sends them to.
pub(super) fn joins(router: &Router, element: usize, down: &[usize], groups: &[Vec<usize>]) -> bool {
    let below = |group: &&Vec<usize>| group.iter().any(|member| down.contains(member));
    let mut below = groups.iter().filter(below).peekable();
    if below.peek().is_none() {
        return false;
    }
    let above = pulled_through(router, element);
    below.any(|group| group.iter().any(|member| above.contains(member)))
}

/// The elements that an element's packets are pulled through.
fn pulled_through(router: &Router, element: usize) -> Vec<usize> {
    let (mut found, mut open) = (Vec::new(), vec![element]);
    while let Some(element) = open.pop() {
        for port in (0..router.wiring.inputs[element].len()).filter(|port| router.wiring.input_is_pull(element, *port))
        {
            if let Some((from, _)) = router.wiring.source(element, port)
                && !found.contains(&from)
            {
                found.push(from);
                open.push(from);
            }
        }
    }
    found
}
