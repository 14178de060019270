#include "backend/push_cuda.h"

#include <string.h>

#include "backend/check_cuda.h"
#include "base/memory.h"
#include "push/push.h"

#define WAIT_LIMIT_NS 10000000000

struct push {
    const device_queue_t *queue;
    push_args_t args; /* but for data and n_items */
    int32_t *fault;   /* mapped host memory */
};

/* What the others need to know of a rank. */
typedef struct invitation {
    cudaIpcMemHandle_t handle;
    char bus[32]; /* of its device */
} invitation_t;

static void set_counts(push_counts_t *counts, uint32_t round) {
    for (int block = 0; block < PUSH_MAX_BLOCKS; block++)
        counts->blocks[block] = round;
    for (int block = 0; block < PUSH_SMALL_MAX_BLOCKS; block++)
        counts->small_blocks[block] = round;
    counts->pairs = round;
    counts->parts = round;
}

static status_t make_mailbox(push_t *push, uint32_t first_round, invitation_t *invitation) {
    void *memory;
    TRY(check_cuda(cudaMalloc(&memory, sizeof(push_mailbox_t)), "allocating the push buffers"));
    push_mailbox_t *mailbox = memory;
    push->args.mailboxes[push->args.tp_rank] = mailbox;
    memory_account(MEMORY_COMM, sizeof(push_mailbox_t));
    TRY(check_cuda(cudaMemset(memory, 0, sizeof(push_mailbox_t)), "clearing the push buffers"));
    push_counts_t counts;
    set_counts(&counts, first_round);
    TRY(check_cuda(cudaMemcpy(&mailbox->counts, &counts, sizeof counts, cudaMemcpyHostToDevice),
                   "filling the push buffers"));
    TRY(check_cuda(cudaHostAlloc(&memory, sizeof *push->fault, cudaHostAllocMapped), "pinning host memory"));
    push->fault = memory;
    *push->fault = 0;
    push->args.fault = push->fault;
    int device;
    TRY(check_cuda(cudaGetDevice(&device), "asking for the device"));
    TRY(check_cuda(cudaDeviceGetPCIBusId(invitation->bus, sizeof invitation->bus, device), "asking for its bus"));
    return check_cuda(cudaIpcGetMemHandle(&invitation->handle, mailbox), "sharing the push buffers");
}

static status_t open_mailboxes(push_t *push, const invitation_t *invitations) {
    push->args.has_own_device = true;
    for (int rank = 0; rank < push->args.tp_size; rank++) {
        for (int other = 0; other < rank; other++)
            if (strcmp(invitations[rank].bus, invitations[other].bus) == 0) push->args.has_own_device = false;
    }
    for (int rank = 0; rank < push->args.tp_size; rank++) {
        if (rank == push->args.tp_rank) continue;
        void *memory;
        TRY(check_cuda(cudaIpcOpenMemHandle(&memory, invitations[rank].handle, cudaIpcMemLazyEnablePeerAccess),
                       "reaching another rank's push buffers"));
        push->args.mailboxes[rank] = memory;
    }
    return STATUS_OK;
}

status_t push_create(comm_t *comm, const device_queue_t *queue, uint32_t first_round, push_t **push) {
    int n_ranks = comm_tp_size(comm);
    void *memory;
    TRY(comm_agree(comm, memory_alloc(MEMORY_OTHER, 1, sizeof(push_t), &memory)));
    push_t *created = memory;
    *push = created;
    created->queue = queue;
    created->args.tp_rank = comm_tp_rank(comm);
    created->args.tp_size = n_ranks;
    created->args.limit_ns = WAIT_LIMIT_NS;
    status_t status = STATUS_OK;
    if (comm_local_size(comm) != n_ranks)
        status = status_fail(STATUS_DEVICE, "push needs all ranks on one host");
    else if (n_ranks > PUSH_MAX_RANKS)
        status = status_fail(STATUS_DEVICE, "push works for up to %d ranks, not %d", PUSH_MAX_RANKS, n_ranks);
    TRY(comm_agree(comm, status));

    invitation_t own, invitations[PUSH_MAX_RANKS];
    memset(&own, 0, sizeof own);
    TRY(comm_agree(comm, make_mailbox(created, first_round, &own)));
    comm_all_gather(comm, &own, sizeof own, invitations);
    return comm_agree(comm, open_mailboxes(created, invitations));
}

void push_destroy(push_t *push) {
    if (!push) return;
    for (int rank = 0; rank < push->args.tp_size; rank++) {
        if (rank != push->args.tp_rank && push->args.mailboxes[rank]) cudaIpcCloseMemHandle(push->args.mailboxes[rank]);
    }
    push_mailbox_t *own = push->args.mailboxes[push->args.tp_rank];
    if (own) {
        cudaFree(own);
        memory_unaccount(MEMORY_COMM, sizeof *own);
    }
    if (push->fault) cudaFreeHost(push->fault);
    memory_free(push);
}

const push_args_t *push_get_args(const push_t *push) { return &push->args; }

status_t push_all_reduce(push_t *push, activation_t *data, size_t n) {
    push_args_t args = push->args;
    args.data = data;
    args.n_items = n;
    return launch_push(&args, push->queue);
}

status_t push_check(const push_t *push) {
    int32_t fault = *(volatile int32_t *)push->fault;
    if (fault == 0) return STATUS_OK;
    return status_fail(STATUS_DEVICE, "rank %d did not come to an all-reduce within %d s", (int)fault - 1,
                       (int)(WAIT_LIMIT_NS / 1000000000));
}
