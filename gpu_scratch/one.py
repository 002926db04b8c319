import time, sys, cProfile, pstats, numpy as np
if not hasattr(np,'row_stack'): np.row_stack=np.vstack
from numba import cuda
from dyads.engine import CUDA, CPU
from dyads.data.dyads import Dyads, Counts
from dyads.model.structure import build
from dyads.model.loss import Log
from dyads.model.objective import Objective, Penalty, BlockPrior
from dyads.model.parameters import Layout, Role
from dyads.model.streams import Key, Stream
def made(n,nr,nc,skew,seed=0):
    rng=np.random.default_rng(seed)
    if skew:
        r=np.minimum((nr*rng.beta(.6,2.5,n)).astype(np.int32),nr-1); c=np.minimum((nc*rng.beta(.45,4,n)).astype(np.int32),nc-1)
    else:
        r=rng.integers(0,nr,n).astype(np.int32); c=rng.integers(0,nc,n).astype(np.int32)
    return Dyads(r,c,rng.integers(0,5,n).astype(np.int8),None,nr,nc,5,None,1)
def problem(n,nr,nc,rank,skew=True):
    d=made(n,nr,nc,skew)
    st=build('stereotype',5,5,True,rank,1)
    lay=Layout(st,nr,nc,1)
    named={'row_bias':1.,'col_bias':1.,'row_factors':1.,'col_factors':1.,'phi':1.}
    obj=Objective(lay,Log(),Penalty.of(lay,named,'none',Counts.of(d,False)))
    theta=np.random.default_rng(1).normal(scale=.1,size=lay.size)
    return obj,d,theta
def timed(name,f,n=3):
    t=time.perf_counter(); f(); first=time.perf_counter()-t
    ts=[]
    for _ in range(n):
        t=time.perf_counter(); f(); ts.append(time.perf_counter()-t)
    print(f'{name:40s} first {first:8.2f} s, then {1e3*min(ts):9.2f} ms',flush=True)
def run(n,nr,nc,rank,skew=True,profile=False):
    print('---',n,nr,nc,'rank',rank,'skew',skew,flush=True)
    t=time.perf_counter(); obj,d,theta=problem(n,nr,nc,rank,skew); print('made',round(time.perf_counter()-t,2))
    with CUDA().bind(obj,d) as p:
        t=time.perf_counter(); p._bound.held(Role.ROW); p._bound.held(Role.COL); p._bound.held(Role.SHARED); cuda.synchronize(); print('grouped and copied',round(time.perf_counter()-t,2),'largest',np.diff(p._bound.held(Role.COL).start).max(), (np.diff(p._bound.held(Role.COL).start)>65536).sum(), flush=True)
        u=p.blocks_in_turn(theta)
        size=obj.layout.sizes[0]
        pr=BlockPrior(np.zeros(size),4*np.eye(size),np.ones(size))
        sh=obj.layout.sizes[2]; ps=BlockPrior(np.zeros(sh),np.eye(sh),np.ones(sh))
        for role in (Role.ROW,Role.COL,Role.SHARED):
            timed('draw '+role.name,lambda: u.draw(role,Key.of(0,Stream.BLOCKS,1,role),ps if role==Role.SHARED else pr))
        timed('moments',lambda: u.moments(Role.ROW))
        timed('blocks_in_turn+theta',lambda: p.blocks_in_turn(theta).theta())
        timed('loss',lambda: p.loss(theta))
        timed('value_and_gradient',lambda: p.value_and_gradient(theta))
        kern=p._bound.kernels
def quick(n,nr,nc,rank,limits):
    from dyads.engine import device as D
    obj,d,theta=problem(n,nr,nc,rank)
    with CUDA().bind(obj,d) as p:
        size=obj.layout.sizes[0]; pr=BlockPrior(np.zeros(size),4*np.eye(size),np.ones(size))
        for lim in limits:
            D.LIMITS['max_registers']=lim; D.kernel_of.cache_clear()
            u=p.blocks_in_turn(theta)
            for role in (Role.ROW,Role.COL): timed(f'regs {lim} draw '+role.name,lambda: u.draw(role,Key.of(0,Stream.BLOCKS,1,role),pr))
if __name__=='__main__':
    quick(1_000_000,6040,3706,10,(128,80))
    run(20_000_000,138_493,26_744,32)
